// Exports of other programs as conversations of this one: ChatGPT's conversations.json, and what
// Open WebUI exports. Texts alone are taken; branches stay.

// The conversations of a parsed file, in the form that transfer.js checks; null if it is no such
// export.
export function foreign(content) {
  const listed = Array.isArray(content) ? content : [content];
  const readers = [[isOfChatGpt, ofChatGpt], [isOfOpenWebUi, ofOpenWebUi]];
  for (const [isOne, read] of readers) {
    const found = listed.filter(isOne);
    if (found.length) return found.map(read);
  }
  return null;
}

const isObject = (value) => value !== null && typeof value === "object";

function isOfChatGpt(item) {
  return isObject(item) && isObject(item.mapping);
}

// `mapping` is a tree of nodes; some have no message, or one that is not shown.
function ofChatGpt({ id, conversation_id: old, title, create_time: created, ...rest }) {
  const { mapping, update_time: updated, current_node: leaf } = rest;
  const texts = new Map();
  for (const [key, node] of Object.entries(mapping)) {
    const role = node?.message?.author?.role;
    const text = textOfParts(node?.message?.content);
    if (text && (role === "user" || role === "assistant")) texts.set(key, { role, text });
  }
  const messages = [...texts].map(([key, { role, text }]) => {
    const { message } = mapping[key];
    const model = message.metadata?.model_slug;
    const at = milliseconds(message.create_time);
    return { id: key, parent: shownAbove(mapping, texts, key), role, text, model, created: at };
  });
  return {
    source: `chatgpt:${id ?? old}`,
    title,
    created: milliseconds(created),
    updated: milliseconds(updated),
    leaf: texts.has(leaf) ? leaf : shownAbove(mapping, texts, leaf),
    messages,
  };
}

function textOfParts(content) {
  if (content?.content_type === "code") return "";
  const parts = Array.isArray(content?.parts) ? content.parts : [];
  return parts.filter((part) => typeof part === "string").join("\n\n").trim();
}

function shownAbove(mapping, texts, key) {
  const seen = new Set([key]);
  let at = mapping[key]?.parent;
  while (at && !texts.has(at) && !seen.has(at)) {
    seen.add(at);
    at = mapping[at]?.parent;
  }
  return texts.has(at) ? at : null;
}

function isOfOpenWebUi(item) {
  return isObject(item) && isObject(item.chat?.history?.messages);
}

function ofOpenWebUi({ id, title, chat, created_at: created, updated_at: updated }) {
  const messages = Object.entries(chat.history.messages).map(([key, message]) => ({
    id: key,
    parent: message.parentId,
    role: message.role,
    text: message.content,
    model: message.model,
    created: milliseconds(message.timestamp),
  }));
  const shown = messages.filter(({ role }) => role === "user" || role === "assistant");
  return {
    source: `openwebui:${id ?? chat.id}`,
    title: title ?? chat.title,
    created: milliseconds(created ?? chat.timestamp),
    updated: milliseconds(updated),
    leaf: chat.history.currentId,
    settings: { system: chat.system ?? chat.params?.system ?? "" },
    messages: shown,
  };
}

// Times are seconds, milliseconds or nanoseconds since 1970.
function milliseconds(time) {
  if (!Number.isFinite(time)) return undefined;
  if (time < 1e11) return 1000 * time;
  return time < 1e14 ? time : time / 1e6;
}
