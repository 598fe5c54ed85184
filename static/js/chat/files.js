// Conversations to and from files of the user; those of recorded requests, to generate them again.

import { send } from "../api.js";
import { t } from "../text.js";
import { Conversation, dataURI, newId } from "./conversation.js";
import { show } from "./dom.js";
import * as store from "./store.js";
import { fromFile, sourceOf, toJson, toMarkdown, Unreadable } from "./transfer.js";

const MOST_BYTES = 256 * 2 ** 20; // of a file to import: a browser holds it in memory several times

export async function exportMarkdown(conversation) {
  const names = { user: t("ui.chat.you"), system: t("ui.chat.system") };
  download(nameOf(conversation.head.title, "md"), toMarkdown(conversation, names), "text/markdown");
}

export async function exportJson(conversation) {
  const whole = toJson([await withImages(conversation)]);
  download(nameOf(conversation.head.title, "json"), whole, "application/json");
}

export async function exportAll() {
  const all = [];
  for (const { id } of await store.conversations()) {
    all.push(await withImages(await Conversation.open(id)));
  }
  download(nameOf("omlx-conversations", "json"), toJson(all), "application/json");
}

// Add the conversations of files and show in `done` how many, or in `problem` why not. Return the
// head of the first one.
export async function importShown(files, done, problem) {
  show(problem, "");
  show(done, "");
  try {
    const { heads, repeated } = await importFiles(files);
    const known = repeated ? t("ui.chat.import.known", { count: repeated }) : "";
    show(done, `${t("ui.chat.imported", { count: heads.length })} ${known}`.trim());
    return heads[0];
  } catch (error) {
    if (!(error instanceof Unreadable)) throw error;
    show(problem, t("ui.chat.import.failed", { reason: error.message }));
  }
}

// Add the conversations of files that are not here yet. Return the heads of the added ones, and how
// many were known. Throws Unreadable for what is no export, or has no room.
async function importFiles(files) {
  const known = new Set((await store.conversations()).map(sourceOf));
  const heads = [];
  let repeated = 0;
  for (const file of files) {
    if (file.size > MOST_BYTES) throw new Unreadable(t("ui.chat.import.size", { name: file.name }));
    for (const { head, messages, images } of fromFile(await file.text(), newId)) {
      if (known.has(head.source)) {
        repeated += 1;
        continue;
      }
      known.add(head.source);
      const blobs = images.map(({ id, uri }) => ({ conversation: head.id, id, blob: blobOf(uri) }));
      const isStored = await store.addAll({ conversation: head, messages, images: blobs });
      if (!isStored) throw new Unreadable(t(store.isKept ? "ui.chat.full" : "ui.chat.unkept"));
      heads.push(head);
    }
  }
  return { heads, repeated };
}

// Add the recorded request that the address of the page names as a new conversation, and resolve to
// its id; null if it names none. Throws Refused if the server has no longer recorded it.
export async function importRecorded() {
  const number = new URLSearchParams(location.search).get("request");
  if (!number) return null;
  history.replaceState(null, "", location.pathname);
  const { body } = await send("GET", `/requests/${encodeURIComponent(number)}/conversation`);
  const [{ head, messages }] = fromFile(JSON.stringify(body), newId);
  head.source = `omlx:${head.id}`; // each replay is a conversation of its own
  await store.addAll({ conversation: head, messages, images: [] });
  history.replaceState(null, "", `#${head.id}`);
  return head.id;
}

async function withImages({ head, messages, images }) {
  const uris = {};
  for (const [id, blob] of images) uris[id] = await dataURI(blob);
  return { head, messages, images: uris };
}

function nameOf(title, extension) {
  const name = title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "chat";
  return `${name}.${extension}`;
}

function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// `fetch` of a data URI is not in the content policy.
export function blobOf(uri) {
  const [head, data] = uri.split(",", 2);
  const bytes = Uint8Array.from(atob(data ?? ""), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: /^data:([^;,]*)/.exec(head)?.[1] });
}
