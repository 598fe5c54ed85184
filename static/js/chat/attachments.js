// Files of a question: pictures as they are, others as the text that the server reads in them.

import { API, refusal } from "../api.js";
import { t } from "../text.js";
import { count, sizeOf } from "./figures.js";

const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const DRAWN = "image/svg+xml"; // a picture that is text
const MOST_BYTES = 20 * 2 ** 20; // of one file; the server has the same limit
export const MOST = 32;

export class Unusable extends Error {}

// Resolve to { name, blob }, for a text with its `bytes` and its `tokens` in the chosen model; they
// are null where it cannot tell. Throws Unusable with a sentence; a larger file is not even read.
export async function attachment(file, models) {
  const { name, size, type } = file;
  if (size > MOST_BYTES) throw new Unusable(t("ui.chat.file.size", { name }));
  if (!type.startsWith("image/") || type === DRAWN) return textOf(file, models.chosen);
  if (!PICTURES.includes(type)) throw new Unusable(t("ui.chat.image.format", { name }));
  if (!models.sees) throw new Unusable(models.blindness);
  return { name, blob: file };
}

async function textOf(file, model) {
  const { name } = file;
  let content;
  try {
    content = await file.arrayBuffer();
  } catch {
    throw new Unusable(t("ui.chat.file.unreadable", { name })); // a folder, or gone meanwhile
  }
  const query = new URLSearchParams({ model, name });
  const answer = await fetch(`${API}/chat/files?${query}`, { method: "POST", body: content });
  if (!answer.ok) {
    const { code = "", message } = await refusal(answer);
    const why = /^file\.(broken|encrypted|limits|no_text|unknown)$/.exec(code)?.[1];
    throw new Unusable(why ? t(`ui.chat.file.${why}`, { name }) : message);
  }
  const { text, tokens } = await answer.json();
  return { name, blob: new Blob([text], { type: "text/plain" }), bytes: file.size, tokens };
}

// Size and tokens of a text, as shown beside its name.
export function weightOf({ bytes, tokens }) {
  const size = sizeOf(bytes);
  if (!Number.isFinite(tokens)) return size;
  return t("ui.chat.file.tokens", { size, tokens: count(tokens) });
}

// The chip of a text: its name and how long it is.
export function chip(file) {
  const element = document.createElement("span");
  element.className = "file-chip";
  const part = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });
  element.append(part("strong", file.name), part("span", weightOf(file)));
  return element;
}
