// Conversations of this browser, in IndexedDB; nothing of them is stored by the server.
//
//   conversations  { id, title, titled, folder, pinned, created, updated, leaf, settings }
//   messages       { conversation, id, parent, role, created, … }, a record each, so that two
//                  windows can add to one conversation
//   images         { id, conversation, blob }
//   drafts         { conversation, text, files }: what is typed; "" is the new conversation
//   texts          { conversation, messages: [{ id, text }] }: derived, for the search; a change of
//                  messages deletes the record
//
// Where the browser stores nothing (a private window may not), reads are empty and writes do
// nothing: `isKept` is false, and the page says so.

const NAME = "omlx-chat";
const VERSION = 3;
const JOINED = ["conversations", "messages", "images", "texts"];
const ALL = [...JOINED, "drafts"];

let database = null;
const channel = new BroadcastChannel(NAME);
const here = new EventTarget(); // what this window has changed

export const isKept = await open();

// Call `heard` with { conversation } when another window has changed one, or { all } of them, and
// with { conversations } that came from the server; with `own`, when this one has, too.
export function onChange(heard, { own = false } = {}) {
  channel.addEventListener("message", ({ data }) => heard(data));
  here.addEventListener("change", ({ detail }) => {
    if (own || detail.conversations) heard(detail);
  });
}

// Call `heard` when this window has changed a conversation, or all of them.
export function onOwnChange(heard) {
  here.addEventListener("change", ({ detail }) => {
    if (!detail.conversations) heard(detail);
  });
}

export function tell(change) {
  channel.postMessage(change);
  here.dispatchEvent(new CustomEvent("change", { detail: change }));
}

async function open() {
  try {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = ({ oldVersion }) => upgrade(request.result, oldVersion);
    database = await done(request);
    database.onversionchange = () => database.close();
    return true;
  } catch {
    return false;
  }
}

function upgrade(opened, oldVersion) {
  if (oldVersion < 1) {
    opened.createObjectStore("conversations", { keyPath: "id" });
    for (const [name, keyPath] of [["messages", ["conversation", "id"]], ["images", "id"]]) {
      const records = opened.createObjectStore(name, { keyPath });
      records.createIndex("conversation", "conversation");
    }
  }
  const ofConversations = [["drafts", 2], ["texts", 3]]; // and their first versions
  for (const [name, version] of ofConversations) {
    if (oldVersion < version) opened.createObjectStore(name, { keyPath: "conversation" });
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function read(name, query) {
  return database ? done(query(database.transaction(name).objectStore(name))) : [];
}

// Run `change` on the stores of one transaction; resolve to whether it is on disk. A full disk is
// told to `onFull`, and the page goes on with what it has in memory.
function write(names, change) {
  if (!database) return Promise.resolve(false);
  const transaction = database.transaction(names, "readwrite");
  change(...names.map((name) => transaction.objectStore(name)));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(true);
    transaction.onabort = () => {
      if (transaction.error?.name !== "QuotaExceededError") return reject(transaction.error);
      here.dispatchEvent(new Event("full"));
      return resolve(false);
    };
  });
}

export function onFull(heard) {
  here.addEventListener("full", heard);
}

const of = (conversation) => (store) => store.index("conversation").getAll(conversation);

export async function conversations() {
  const all = await read("conversations", (store) => store.getAll());
  return all.sort((one, other) => other.updated - one.updated);
}

// In the order of keys, lists follow ids.
const messagesIn = (conversation) => IDBKeyRange.bound([conversation], [conversation, []]);

export async function messagesOf(conversation) {
  const found = await read("messages", (store) => store.getAll(messagesIn(conversation)));
  return new Map(found.map((message) => [message.id, message]));
}

// The records of texts that are kept; of some conversations there is none.
export async function keptTexts() {
  return read("texts", (store) => store.getAll());
}

// The texts of a conversation, read from its messages. They are kept unless an answer is running.
export async function gatherTexts(conversation) {
  let texts = [];
  await write(["messages", "texts"], (bodies, kept) => {
    bodies.getAll(messagesIn(conversation)).onsuccess = ({ target: { result } }) => {
      texts = result.map(({ id, twin, text }) => ({ id: twin ?? id, text }));
      const isSettled = result.every(({ status }) => status !== "running");
      if (texts.length && isSettled) kept.put({ conversation, messages: texts });
    };
  });
  return texts;
}

// Blobs by id.
export async function imagesOf(conversation) {
  const found = await read("images", of(conversation));
  return new Map(found.map(({ id, blob }) => [id, blob]));
}

export async function saveConversation(conversation) {
  await write(["conversations"], (store) => store.put(conversation));
  tell({ conversation: conversation.id });
}

// Change fields of a conversation, unless it was deleted.
export async function changeConversation(id, fields) {
  await write(["conversations"], (store) => {
    store.get(id).onsuccess = ({ target: { result } }) => {
      if (result) store.put({ ...result, ...fields });
    };
  });
  tell({ conversation: id });
}

// An answer is not replaced by an earlier state of it, which another window may still have, and a
// deleted conversation does not come back.
export async function saveMessage(message) {
  const copy = structuredClone(message);
  const { conversation, id } = message;
  await write(["conversations", "messages", "texts"], (heads, store, texts) => {
    heads.getKey(conversation).onsuccess = ({ target: head }) => {
      if (head.result === undefined) return;
      store.get([conversation, id]).onsuccess = ({ target }) => {
        if (!isNewer(target.result, copy)) store.put(copy);
        texts.delete(conversation);
      };
    };
  });
  tell({ conversation });
}

function isNewer(known, { attempt, sequence }) {
  if (!known) return false;
  return known.attempt > attempt || (known.attempt === attempt && known.sequence > sequence);
}

export async function removeMessage({ conversation, id }) {
  await write(["messages", "texts"], (store, texts) => {
    store.delete([conversation, id]);
    texts.delete(conversation);
  });
  tell({ conversation });
}

// What is typed in a conversation, undefined if nothing is.
export async function draftOf(conversation) {
  return database ? read("drafts", (store) => store.get(conversation)) : undefined;
}

export async function saveDraft(conversation, { text, files }) {
  await write(["drafts"], (store) => {
    if (text || files.length) store.put({ conversation, text, files });
    else store.delete(conversation);
  });
}

// The stored state of an answer, if it has ended.
export async function ended({ conversation, id, attempt }) {
  const stored = await read("messages", (store) => store.get([conversation, id]));
  return stored?.attempt === attempt && stored?.status !== "running" ? stored : {};
}

export async function saveImage(conversation, id, blob) {
  await write(["images"], (store) => store.put({ conversation, id, blob }));
}

// Resolve to whether the conversation is stored.
export async function addAll({ conversation, messages, images }) {
  const isStored = await write(JOINED, (heads, bodies, pictures, texts) => {
    heads.put(conversation);
    texts.delete(conversation.id);
    messages.forEach((message) => bodies.put(message));
    images.forEach((image) => pictures.put(image));
  });
  if (isStored) tell({ conversation: conversation.id });
  return isStored;
}

export async function remove(conversation, { isTold = true } = {}) {
  await write(ALL, (heads, bodies, pictures, ...others) => {
    for (const store of [heads, ...others]) store.delete(conversation);
    for (const store of [bodies, pictures]) {
      store.index("conversation").openKeyCursor(conversation).onsuccess = ({ target }) => {
        if (!target.result) return;
        store.delete(target.result.primaryKey);
        target.result.continue();
      };
    }
  });
  if (isTold) tell({ conversation });
}

// Join a conversation of the server with this browser's. `keepsHead`: it is newer here.
export async function join({ head, messages, images }, { keepsHead }) {
  await write(JOINED, (heads, bodies, pictures, texts) => {
    texts.delete(head.id);
    heads.getKey(head.id).onsuccess = ({ target }) => {
      if (target.result === undefined || !keepsHead) heads.put(head);
    };
    for (const message of messages) {
      bodies.get([message.conversation, message.id]).onsuccess = ({ target }) => {
        if (!isNewer(target.result, message)) bodies.put(message);
      };
    }
    images.forEach((image) => pictures.put(image));
  });
}

export async function removeAll() {
  await write(ALL, (...stores) => {
    stores.forEach((store) => store.clear());
  });
  tell({ all: true });
}
