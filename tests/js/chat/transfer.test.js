import assert from "node:assert/strict";
import { test } from "node:test";

import { fromFile, toJson, toMarkdown, Unreadable } from "../../../static/js/chat/transfer.js";

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
  const kept = { ...head, folder: "Geography", pinned: true };
  const [read] = fromFile(toJson([{ head: kept, messages, images: { i: uri } }]), newId);
  assert.deepEqual([read.head.folder, read.head.pinned], ["Geography", true]);
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
  const others = ['[{"uuid": 1, "chat_messages": []}]', "[]", "3", "null", "PK\u0003\u0004"];
  const bad = ["", "# Notes\n\ntext", "{}", "{", '{"format": "omlx-conversations"}', ...others];
  for (const text of bad) assert.throws(() => fromFile(text, newId), Unreadable, text);
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

test("a text file of a question comes back", () => {
  const files = [{ id: "f", name: "a.txt", bytes: 2, tokens: 1 }];
  const asked = { id: "q", parent: null, role: "user", text: "?", images: files };
  const given = { head, messages: new Map([["q", asked]]), images: { f: "data:text/plain;base64,aGk=" } };
  const [{ messages: [question], images }] = fromFile(toJson([given]), newId);
  const [{ id, ...file }] = question.images;
  assert.deepEqual(file, { name: "a.txt", bytes: 2, tokens: 1 });
  assert.deepEqual(images, [{ id, uri: "data:text/plain;base64,aGk=" }]);
});

test("a conversation keeps where it came from, so that a second import knows it", () => {
  const text = toJson([{ head, messages, images: {} }]);
  const [first] = fromFile(text, newId);
  assert.equal(first.head.source, "omlx:c");
  const again = toJson([{ ...first, messages: new Map(first.messages.map((one) => [one.id, one])) }]);
  assert.equal(fromFile(again, newId)[0].head.source, "omlx:c");
  const written = toMarkdown({ head, messages }, { user: "You", system: "System" });
  const sources = [written, written, `${written} `].map((one) => fromFile(one, newId)[0].head.source);
  assert.equal(sources[0], sources[1]);
  assert.notEqual(sources[0], sources[2]);
});

const said = (role, ...parts) => ({
  author: { role },
  content: { content_type: "text", parts },
  create_time: 1_700_000_000.5,
  metadata: { model_slug: "gpt-5" },
});

test("an export of ChatGPT is read, with its branches", () => {
  const mapping = {
    root: { id: "root", message: null, parent: null, children: ["s"] },
    s: { message: said("system", ""), parent: "root" },
    q: { message: said("user", "Hi", { image: 1 }), parent: "s" },
    t: { message: said("tool", "ran"), parent: "q" },
    a: { message: said("assistant", "Ho"), parent: "t" },
    b: { message: said("assistant", "Hu"), parent: "q" },
  };
  const one = { id: "x", title: "Greeting", create_time: 1.7e9, mapping, current_node: "b" };
  const [{ head: read, messages: turns }] = fromFile(JSON.stringify([one]), newId);
  assert.deepEqual([read.title, read.source, read.created], ["Greeting", "chatgpt:x", 1.7e12]);
  assert.deepEqual(turns.map(({ role, text }) => [role, text]), [
    ["user", "Hi"],
    ["assistant", "Ho"],
    ["assistant", "Hu"],
  ]);
  assert.deepEqual(turns.map(({ parent }) => parent), [null, turns[0].id, turns[0].id]);
  assert.equal(read.leaf, turns[2].id);
  assert.equal(turns[1].model, "gpt-5");
  assert.equal(turns[1].created, 1_700_000_000_500);
});

test("an export of Open WebUI is read, with its branches", () => {
  const entries = {
    u: { id: "u", parentId: null, role: "user", content: "Hi", timestamp: 1_700_000_000 },
    a: { id: "a", parentId: "u", role: "assistant", content: "Ho", model: "qwen3:8b" },
    b: { id: "b", parentId: "u", role: "assistant", content: "Hu", model: "llama" },
  };
  const chat = { title: "T", system: "Be brief.", history: { messages: entries, currentId: "a" } };
  const [{ head: read, messages: turns }] = fromFile(
    JSON.stringify([{ id: "w", title: "T", chat, created_at: 1_700_000_000 }]),
    newId,
  );
  assert.deepEqual([read.source, read.settings.system], ["openwebui:w", "Be brief."]);
  assert.deepEqual(turns.map(({ text, model }) => [text, model]), [
    ["Hi", undefined],
    ["Ho", "qwen3:8b"],
    ["Hu", "llama"],
  ]);
  assert.equal(read.leaf, turns[1].id);
});

test("a tree that runs in a circle ends", () => {
  const mapping = {
    a: { message: said("user", "Hi"), parent: "b" },
    b: { message: null, parent: "c" },
    c: { message: null, parent: "b" },
  };
  const [{ messages: turns }] = fromFile(JSON.stringify([{ id: "x", mapping }]), newId);
  assert.deepEqual(turns.map(({ parent }) => parent), [null]);
  const own = new Map(["a", "b"].map((id) => [id, { ...answered, id, parent: id === "a" ? "b" : "a" }]));
  const [read] = fromFile(toJson([{ head, messages: own, images: {} }]), newId);
  assert.equal(read.messages.filter(({ parent }) => parent === null).length, 1);
});
