import assert from "node:assert/strict";
import { test } from "node:test";

import { excerpt, SearchIndex } from "../../../static/js/chat/search.js";

// `kept`: ids of conversations whose texts the store has kept.
function storeOf(conversations, ...kept) {
  const gatherTexts = async (id) =>
    (conversations.get(id) ?? []).map(({ id: message, twin, text }) => ({ id: twin ?? message, text }));
  return {
    conversations: async () => [...conversations.keys()].map((id) => ({ id })),
    gatherTexts,
    keptTexts: () =>
      Promise.all(kept.map(async (id) => ({ conversation: id, messages: await gatherTexts(id) }))),
  };
}

test("a hit is shown with the words around it", () => {
  const text = `${"before ".repeat(20)}The\nHIT${" after".repeat(20)}`;
  const { before, hit, after } = excerpt(text, "hit");
  assert.equal(hit, "HIT");
  assert.match(before, /^….*before The $/);
  assert.match(after, /^ after.*…$/);
  assert.deepEqual(excerpt("Hit", "hit"), { before: "", hit: "Hit", after: "" });
});

test("texts are found with their message, and as they change", async () => {
  const conversations = new Map([
    ["a", [{ id: "1", text: "Rivers of Europe" }, { id: "2", text: "The Rhine" }]],
    ["b", [{ id: "3", text: "Nothing" }, { id: "4", text: "A rhinestone", twin: "5" }]],
  ]);
  const index = new SearchIndex(storeOf(conversations, "a"));
  await index.changed({ conversation: "a" }); // not read yet
  await index.ready();
  const hits = index.find("RHINE");
  assert.deepEqual([...hits.keys()], ["a", "b"]);
  assert.equal(hits.get("a").message, "2");
  assert.equal(hits.get("b").message, "5"); // beside the answer that is shown
  conversations.set("a", [{ id: "1", text: "Lakes" }]);
  await index.changed({ conversation: "a" });
  assert.deepEqual([...index.find("rhine").keys()], ["b"]);
  conversations.delete("b");
  await index.changed({ conversation: "b" });
  assert.equal(index.find("rhine").size, 0);
  await index.changed({ all: true });
  assert.equal(index.find("lakes").size, 0);
});
