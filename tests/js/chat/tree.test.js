import assert from "node:assert/strict";
import { test } from "node:test";

import { newestLeaf, path, siblings, titleFrom, titleOf, twinOf } from "../../../static/js/chat/tree.js";

const messages = new Map(
  [
    { id: "q", parent: null },
    { id: "a", parent: "q" },
    { id: "b", parent: "q" },
    { id: "plain", parent: "q", twin: "b" },
    { id: "q2", parent: "a" },
    { id: "a2", parent: "q2" },
  ].map((message, created) => [message.id, { ...message, created }]),
);
const ids = (list) => list.map(({ id }) => id);

test("a branch leads from the first question to its leaf", () => {
  assert.deepEqual(ids(path(messages, "a2")), ["q", "a", "q2", "a2"]);
  assert.deepEqual(ids(path(messages, "b")), ["q", "b"]);
  assert.deepEqual(path(messages, null), []);
});

test("answers of one question are siblings; one beside another is none", () => {
  assert.deepEqual(ids(siblings(messages, messages.get("a"))), ["a", "b"]);
  assert.equal(twinOf(messages, "b").id, "plain");
  assert.equal(twinOf(messages, "a"), undefined);
});

test("a branch is shown up to its newest message", () => {
  assert.equal(newestLeaf(messages, "a"), "a2");
  assert.equal(newestLeaf(messages, "q"), "b");
});

test("a title is the first line with text, cut at a word", () => {
  assert.equal(titleOf("\n  Hello there.\nMore"), "Hello there.");
  const long = titleOf("word ".repeat(30));
  assert.ok(long.length <= 61 && long.endsWith("word…"), long);
  assert.equal(titleOf("字".repeat(80)), `${"字".repeat(60)}…`);
  assert.equal(titleOf(""), "");
});

test("a title by a model is its first line, without what wraps it", () => {
  assert.equal(titleFrom('\n**Title: "Rivers of Europe."**\nIt is'), "Rivers of Europe");
  assert.equal(titleFrom("「ヨーロッパの川」"), "ヨーロッパの川");
  assert.equal(titleFrom("# 标题：欧洲的河流。"), "欧洲的河流");
  assert.equal(titleFrom(" \n"), null);
  assert.equal(titleFrom("word ".repeat(40)), null);
});
