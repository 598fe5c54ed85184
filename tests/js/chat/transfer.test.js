import assert from "node:assert/strict";
import { test } from "node:test";

import { fromFile, toJson, toMarkdown } from "../../../static/js/chat/transfer.js";

let made = 0;
const newId = () => `new${made++}`;
const head = {
  id: "c",
  title: "A title",
  created: 1,
  updated: 2,
  leaf: "a",
  settings: { model: "m", system: "Be\nbrief." },
};
const uri = "data:image/png;base64,AA==";
const answered = { parent: "q", role: "assistant", model: "org/m" };
const messages = new Map(
  [
    {
      id: "q",
      parent: null,
      role: "user",
      text: "Hi\n\n<!-- omlx:user -->",
      images: [{ id: "i", name: "x" }],
    },
    { id: "a", ...answered, text: "# Ho\n", seed: 5, status: "done" },
    { id: "b", ...answered, text: "other", seed: 6, status: "running" },
  ].map((message, created) => [message.id, { created, conversation: "c", ...message }]),
);

test("JSON brings everything back, under new ids", () => {
  const [read] = fromFile(toJson([{ head, messages, images: { i: uri } }]), newId);
  assert.equal(read.head.title, "A title");
  assert.equal(read.head.settings.system, "Be\nbrief.");
  const [question, answer, other] = read.messages;
  assert.equal(read.head.leaf, answer.id);
  assert.equal(answer.parent, question.id);
  assert.deepEqual([answer.text, answer.model, answer.seed], ["# Ho\n", "org/m", 5]);
  assert.notEqual(other.status, "running");
  assert.deepEqual(read.images, [{ id: question.images[0].id, uri }]);
  const old = new Set(["c", "q", "a", "b", "i"]);
  const ids = [read.head.id, question.id, answer.id, other.id, read.images[0].id];
  assert.ok(!ids.some((id) => old.has(id)));
});

test("Markdown brings the branch back, whatever its texts hold", () => {
  const names = { user: "You", system: "System prompt" };
  const text = toMarkdown({ head, messages }, names);
  assert.match(text, /^# A title\n/);
  const [read] = fromFile(text, newId);
  assert.equal(read.head.settings.system, "Be\nbrief.");
  assert.deepEqual(
    read.messages.map(({ role, text: content }) => [role, content]),
    [["user", "Hi\n\n<!-- omlx:user -->"], ["assistant", "# Ho"]],
  );
  assert.equal(read.messages[1].parent, read.messages[0].id);
  assert.equal(read.messages[1].model, "org/m");
});

test("a file of another kind is refused", () => {
  for (const text of ["", "# Notes\n\ntext", "{}", "{", '{"format": "omlx-conversations"}']) {
    assert.throws(() => fromFile(text, newId), SyntaxError);
  }
});

test("what a file holds is taken as text or number, or not at all", () => {
  const hostile = {
    id: "q",
    parent: "nowhere",
    role: "user",
    text: { toString: "x" },
    images: [{ id: "i", name: 5 }],
    onclick: "x",
  };
  const answer = { id: "a", ...answered, timings: { predicted_n: "x" }, drafted: [["a"]] };
  const given = { messages: [hostile, answer, null], images: { i: "javascript:x" }, settings: 3 };
  const conversations = [given];
  const text = JSON.stringify({ format: "omlx-conversations", version: 1, conversations });
  const [{ messages: [question, read], images }] = fromFile(text, newId);
  assert.deepEqual([question.text, question.images, images], ["", [], []]);
  assert.equal(question.parent, null);
  assert.ok(!("onclick" in question));
  assert.deepEqual([read.timings, read.drafted], [undefined, []]);
});
