// Conversations as files: JSON with everything, Markdown with the shown branch. Both can be read
// again. A message of a Markdown file begins with a comment that tells whose it is; in texts such
// comments are escaped.

import { newAnswer } from "./answer-events.js";
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

// The conversations of a file, as [{ head, messages, images }] with new ids. Throws SyntaxError.
export function fromFile(text, newId) {
  const read = text.trimStart().startsWith("{") ? fromJson(text) : [fromMarkdown(text)];
  return read.map((conversation) => renewed(conversation, newId));
}

function fromJson(text) {
  const { format, version, conversations } = JSON.parse(text);
  if (format !== FORMAT || version !== VERSION || !Array.isArray(conversations)) {
    throw new SyntaxError(`no ${FORMAT} of version ${VERSION}`);
  }
  return conversations;
}

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
  if (!turns.length) throw new SyntaxError("no message");
  const messages = [];
  turns.forEach(({ role, model = "", lines }) => {
    const content = lines.slice(2).join("\n").trim().replaceAll("<!-- \\omlx", "<!-- omlx");
    if (role === "system") system = content;
    else {
      const id = messages.length;
      messages.push({ id, parent: id - 1, role, model, text: content });
    }
  });
  return { title, settings: { system }, leaf: messages.length - 1, messages };
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
  const head = {
    id,
    title: textOf(given.title) || titleOf(messages[0]?.text ?? ""),
    created: numberOf(given.created, now),
    updated: numberOf(given.updated, now),
    leaf: ids.get(given.leaf) ?? messages.at(-1)?.id ?? null,
    settings: textsOf(given.settings),
  };
  return { head, messages, images: renamed(given, messages, newId) };
}

function checked(message, ids) {
  if (message.role === "user") {
    const images = listOf(message.images).map(({ id, name }) => ({ id, name: textOf(name) }));
    return { role: "user", text: textOf(message.text), images };
  }
  const { drafted, usage, timings, firstMs, thinkingMs, warnings, error } = message;
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
  });
}

// Images get new ids too; one that a message does not name is left out.
function renamed({ images = {} }, messages, newId) {
  const found = [];
  for (const message of messages) {
    const isImage = ({ id }) => textOf(images[id]).startsWith("data:image/");
    message.images = message.images?.filter(isImage);
    message.images?.forEach((image) => {
      const uri = images[image.id];
      image.id = newId();
      found.push({ id: image.id, uri });
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
