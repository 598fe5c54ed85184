// A conversation as a tree of messages, a Map by id. Each has a parent (null: the first question).
// Editing a question or answering it again adds a sibling: a branch. A `twin` is an answer that is
// shown beside another one, and no branch.

export function path(messages, leaf) {
  const found = [];
  for (let at = messages.get(leaf); at; at = messages.get(at.parent)) found.unshift(at);
  return found;
}

export function childrenOf(messages, parent) {
  const children = [...messages.values()].filter((each) => each.parent === parent && !each.twin);
  return children.sort((one, other) => one.created - other.created);
}

export function siblings(messages, message) {
  return childrenOf(messages, message.parent);
}

export function twinOf(messages, id) {
  return [...messages.values()].find(({ twin }) => twin === id);
}

// The newest message below `id`, or itself.
export function newestLeaf(messages, id) {
  let leaf = id;
  for (let children; (children = childrenOf(messages, leaf)).length; ) leaf = children.at(-1).id;
  return leaf;
}

const TITLE_LENGTH = 60;
const LONGEST = 100; // characters of what a model writes; more is no title

// The first line of a question that has any text, cut at a word.
export function titleOf(text) {
  const line = text.split("\n").find((each) => each.trim())?.trim() ?? "";
  if (line.length <= TITLE_LENGTH) return line;
  const cut = line.slice(0, TITLE_LENGTH);
  const space = cut.lastIndexOf(" ");
  return `${cut.slice(0, space > TITLE_LENGTH / 2 ? space : TITLE_LENGTH)}…`;
}

// What a model has written as a title, without what it wraps it in; null if it is none.
export function titleFrom(text) {
  const line = text.split("\n").find((each) => each.trim())?.trim() ?? "";
  const bare = line.replace(/^[#*\s]*(?:title|제목|タイトル|标题)\s*[:：]/i, "");
  const title = bare.replace(/^[\s#*"'“”„«»「」《》`]+|[\s*"'“”„«»「」《》`.。]+$/g, "");
  return title && title.length <= LONGEST ? titleOf(title) : null;
}
