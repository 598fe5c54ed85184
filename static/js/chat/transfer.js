// Conversations as files: JSON with everything, Markdown with the shown branch. Both can be read
// again. A message of a Markdown file begins with a comment that tells whose it is; in texts such
// comments are escaped.

import { newAnswer } from "./answer-events.js";
import { foreign } from "./foreign.js";
import { path, titleOf } from "./tree.js";

const FORMAT = "omlx-conversations";
const VERSION = 1;
const MARK = /^<!-- omlx:(user|assistant|system)(?: (.*?))? -->$/;
const ENDED = new Set(["done", "stopped", "failed", "lost"]);

// `all`: [{ head, messages (a Map), images: { id: data URI } }]
export function toJson(all) {
  const conversations = all.map(({ head, messages, images }) => ({
    ...head,
    messages: [...messages.values()],
    images,
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

export function toMarkdown({ head, messages }, names) {
  const parts = [`# ${head.title}`];
  if (head.settings.system) parts.push(block("system", names.system, head.settings.system));
  for (const { role, text, model } of path(messages, head.leaf)) {
    parts.push(block(role, role === "user" ? names.user : model, text, model));
  }
  return `${parts.join("\n\n")}\n`;
}

function block(role, name, text, model) {
  const mark = role === "assistant" ? `assistant ${model}` : role;
  return `<!-- omlx:${mark} -->\n## ${name}\n\n${text.replaceAll("<!-- omlx", "<!-- \\omlx")}`;
}

// A file that is no export that can be read here.
export class Unreadable extends Error {}

// The conversations of a file, as [{ head, messages, images }] with new ids. `head.source` says
// which conversation it was: a second import of the same one can be left out. Throws Unreadable.
export function fromFile(text, newId) {
  if (text.startsWith("PK\u0003")) throw new Unreadable("ZIP");
  const read = /^\s*[[{]/.test(text) ? fromJson(text) : [fromMarkdown(text)];
  return read.map((conversation) => renewed(conversation, newId));
}

function fromJson(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Unreadable(error.message);
  }
  const { format, version, conversations } = content;
  if (format !== FORMAT) {
    const others = foreign(content);
    if (others) return others;
  }
  if (format !== FORMAT || version !== VERSION || !Array.isArray(conversations)) {
    throw new Unreadable(`no ${FORMAT} of version ${VERSION}`);
  }
  return listOf(conversations).map((one) => ({ ...one, source: sourceOf(one) }));
}

export const sourceOf = ({ id, source }) => source ?? `omlx:${id}`;

function fromMarkdown(text) {
  const turns = [];
  let title = "";
  let system = "";
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    const mark = MARK.exec(line);
    if (mark) turns.push({ role: mark[1], model: mark[2], lines: [] });
    else if (turns.length) turns.at(-1).lines.push(line);
    else title ||= line.replace(/^# /, "").trim();
  }
  if (!turns.length) throw new Unreadable("no message");
  const messages = [];
  turns.forEach(({ role, model = "", lines }) => {
    const content = lines.slice(2).join("\n").trim().replaceAll("<!-- \\omlx", "<!-- omlx");
    if (role === "system") system = content;
    else {
      const id = messages.length;
      messages.push({ id, parent: id - 1, role, model, text: content });
    }
  });
  const source = `markdown:${text.length}:${hashOf(text)}`;
  return { title, settings: { system }, leaf: messages.length - 1, messages, source };
}

// FNV-1a: a short name of a text, not a secure one.
function hashOf(text) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return (hash >>> 0).toString(16);
}

// What a file says is checked and copied field by field: it may come from anywhere.
function renewed(given, newId) {
  const id = newId();
  const now = Date.now();
  const ids = new Map(listOf(given.messages).map((message) => [message.id, newId()]));
  const messages = listOf(given.messages).map((message, index) => ({
    ...checked(message, ids),
    id: ids.get(message.id),
    conversation: id,
    parent: ids.get(message.parent) ?? null,
    created: numberOf(message.created, now + index),
  }));
  cutCircles(messages);
  const head = {
    id,
    source: textOf(given.source),
    title: textOf(given.title) || titleOf(messages[0]?.text ?? ""),
    titled: textOf(given.titled),
    folder: textOf(given.folder),
    pinned: given.pinned === true,
    created: numberOf(given.created, now),
    updated: numberOf(given.updated, now),
    leaf: ids.get(given.leaf) ?? messages.at(-1)?.id ?? null,
    settings: textsOf(given.settings),
  };
  return { head, messages, images: renamed(given, messages, newId) };
}

// A message below itself would be walked up for ever.
function cutCircles(messages) {
  const byId = new Map(messages.map((message) => [message.id, message]));
  for (const message of messages) {
    const seen = new Set([message.id]);
    for (let at = byId.get(message.parent); at; at = byId.get(at.parent)) {
      if (seen.has(at.id)) at.parent = null;
      seen.add(at.id);
    }
  }
}

function checked(message, ids) {
  if (message.role === "user") {
    const images = listOf(message.images).map(fileOf);
    return { role: "user", text: textOf(message.text), images };
  }
  const { calls, drafted, usage, timings, firstMs, thinkingMs, warnings, error } = message;
  const status = ENDED.has(message.status) ? message.status : "done";
  const fields = { model: textOf(message.model), seed: numberOf(message.seed, 0), status };
  const text = { text: textOf(message.text), reasoning: textOf(message.reasoning) };
  const twin = ids.has(message.twin) ? { twin: ids.get(message.twin) } : {};
  const facts = { usage, timings: isComplete(timings) ? timings : undefined };
  const known = { firstMs, thinkingMs };
  for (const name of Object.keys(known)) if (!Number.isFinite(known[name])) delete known[name];
  return newAnswer({
    ...fields,
    ...text,
    ...twin,
    ...facts,
    ...known,
    drafted: listOf(drafted).filter((run) => Array.isArray(run) && run.every(Number.isFinite)),
    warnings: listOf(warnings).map(reasonOf),
    ...(error ? { error: reasonOf(error) } : {}),
    ...(calls ? { calls: listOf(calls).map(callOf) } : {}),
  });
}

// A call that was never decided stays open.
function callOf({ id, name, arguments: given, status, result, failed }) {
  const call = { id: textOf(id), name: textOf(name), arguments: textOf(given), status: "asked" };
  if (status !== "done" && status !== "refused") return call;
  return { ...call, status, result: textOf(result), failed: failed === true };
}

// A picture; or a text, which has `bytes`.
function fileOf({ id, name, bytes, tokens }) {
  const file = { id, name: textOf(name) };
  if (!Number.isFinite(bytes)) return file;
  return { ...file, bytes, tokens: numberOf(tokens, null) };
}

// Files get new ids too; one that a message does not name is left out.
function renamed({ images = {} }, messages, newId) {
  const found = [];
  for (const message of messages) {
    const isKnown = ({ id, bytes }) => {
      return textOf(images[id]).startsWith(bytes === undefined ? "data:image/" : "data:text/plain");
    };
    message.images = message.images?.filter(isKnown);
    message.images?.forEach((file) => {
      const uri = images[file.id];
      file.id = newId();
      found.push({ id: file.id, uri });
    });
  }
  return found;
}

function isComplete(timings) {
  const numbers = ["predicted_n", "predicted_per_second", "cache_n", "prompt_n", "draft_n"];
  const known = timings && numbers.every((name) => Number.isFinite(timings[name]));
  return known && typeof timings.speculation?.code === "string";
}

function reasonOf(reason) {
  const { code, params, message } = reason;
  return { code: textOf(code), params: params ?? {}, message: textOf(message) };
}

function textOf(value) {
  return typeof value === "string" ? value : "";
}

function textsOf(object) {
  const texts = Object.entries(object ?? {}).map(([name, value]) => [name, textOf(value)]);
  return Object.fromEntries(texts);
}

function numberOf(value, otherwise) {
  return Number.isFinite(value) ? value : otherwise;
}

function listOf(value) {
  return Array.isArray(value) ? value.filter((item) => item !== null && item !== undefined) : [];
}
