import assert from "node:assert/strict";
import { test } from "node:test";

import { mathExtensions } from "../../../static/js/chat/math-syntax.js";
import { Sentences } from "../../../static/js/chat/speech.js";
import { overlaps, placed } from "../../../static/js/chat/tint.js";

test("whole sentences are spoken, once, and no code", () => {
  const text = "**One.** Two, three? `four` 5.5\n```js\nlet x = 1. \n```\nEnd";
  const spoken = [];
  const sentences = new Sentences();
  for (let end = 1; end <= text.length; end++) spoken.push(sentences.read(text.slice(0, end)));
  spoken.push(sentences.read(text, { whole: true }));
  assert.deepEqual(spoken.filter(Boolean), ["One. Two, three?", "four 5.5", "End"]);
  assert.equal(new Sentences().read("一つ。二"), "一つ。");
});

test("words of a page are found in their source", () => {
  const source = "Some **bold** [text](http://x) &amp; end";
  const { words } = placed("Some bold text & end", source);
  const found = words.map(({ at, length }) => source.slice(at, at + length));
  assert.deepEqual(found, ["Some", "bold", "text", "&", "end"]);
});

test("the drafted part of a word is cut out", () => {
  assert.deepEqual(overlaps({ at: 10, length: 5 }, [[0, 4], [8, 12], [14, 30]]), [[0, 2], [4, 5]]);
});

test("formulas are recognised, and amounts of money are not", () => {
  const [block, inline] = mathExtensions;
  const read = ({ tokenizer }, source) => tokenizer(source)?.text;
  assert.equal(read(inline, "$a^2$ b"), "a^2");
  assert.equal(read(inline, "\\(x\\)"), "x");
  assert.equal(read(inline, "$$x$$"), "x");
  assert.equal(read(inline, "$5 and $10"), undefined);
  assert.equal(read(inline, "$ 5$"), undefined);
  assert.equal(read(block, "$$\nx\n$$\nmore"), "x");
  assert.equal(read(block, "\\[x\\] more"), undefined);
});
