import assert from "node:assert/strict";
import { test } from "node:test";

import { estimate, tokensOf } from "../../../static/js/chat/token-estimate.js";

const usage = (total_tokens) => ({ total_tokens });

test("texts without spaces between words have more tokens", () => {
  assert.equal(estimate("abcd".repeat(100)), 100);
  assert.ok(estimate("漢字かな한글".repeat(10)) > 40);
});

test("nothing that is not counted leaves the count of the server", () => {
  const turns = [{ text: "a" }, { text: "b", usage: usage(20) }];
  assert.deepEqual(tokensOf(turns, ""), { tokens: 20, isExact: true });
  assert.deepEqual(tokensOf([], ""), { tokens: 0, isExact: true });
});

test("what is typed is estimated as the conversation so far was counted", () => {
  const turns = [{ text: "x".repeat(8000) }, { text: "y".repeat(10000), usage: usage(9500) }];
  const { tokens, isExact } = tokensOf(turns, "z".repeat(4000));
  assert.equal(tokens, 9500 + 2000);
  assert.equal(isExact, false);
  assert.equal(tokensOf([...turns, { text: "q".repeat(40) }], "").tokens, 9500 + 20);
  const short = [{ text: "x" }, { text: "y", usage: usage(50) }];
  assert.ok(tokensOf(short, "z".repeat(4000)).tokens < 50 + 1200);
});
