// Conversations of this browser, in IndexedDB; nothing of them is stored by the server.
//
//   conversations  { id, title, created, updated, leaf, settings }
//   messages       { conversation, id, parent, role, created, … }, a record each, so that two
//                  windows can add to one conversation
//   images         { id, conversation, blob }
//
// Where the browser stores nothing (a private window may not), reads are empty and writes do
// nothing: `isKept` is false, and the page says so.

const NAME = "omlx-chat";
const VERSION = 1;

let database = null;
const channel = new BroadcastChannel(NAME);

export const isKept = await open();

// Call `heard` with { conversation } when another window has changed one, or { all } of them.
export function onChange(heard) {
  channel.addEventListener("message", ({ data }) => heard(data));
}

async function open() {
  try {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      for (const [name, keyPath] of [["messages", ["conversation", "id"]], ["images", "id"]]) {
        const records = request.result.createObjectStore(name, { keyPath });
        records.createIndex("conversation", "conversation");
      }
    };
    database = await done(request);
    database.onversionchange = () => database.close();
    return true;
  } catch {
    return false;
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

// Run `change` on the stores of one transaction; resolve when it is on disk.
function write(names, change) {
  if (!database) return Promise.resolve();
  const transaction = database.transaction(names, "readwrite");
  change(...names.map((name) => transaction.objectStore(name)));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
}

const of = (conversation) => (store) => store.index("conversation").getAll(conversation);

export async function conversations() {
  const all = await read("conversations", (store) => store.getAll());
  return all.sort((one, other) => other.updated - one.updated);
}

export async function messagesOf(conversation) {
  const found = await read("messages", of(conversation));
  return new Map(found.map((message) => [message.id, message]));
}

export async function allMessages() {
  return read("messages", (store) => store.getAll());
}

// Blobs by id.
export async function imagesOf(conversation) {
  const found = await read("images", of(conversation));
  return new Map(found.map(({ id, blob }) => [id, blob]));
}

export async function saveConversation(conversation) {
  await write(["conversations"], (store) => store.put(conversation));
  channel.postMessage({ conversation: conversation.id });
}

// An answer is not replaced by an earlier state of it, which another window may still have, and a
// deleted conversation does not come back.
export async function saveMessage(message) {
  const copy = structuredClone(message);
  const { conversation, id } = message;
  await write(["conversations", "messages"], (heads, store) => {
    heads.getKey(conversation).onsuccess = ({ target: head }) => {
      if (head.result === undefined) return;
      store.get([conversation, id]).onsuccess = ({ target }) => {
        if (!isNewer(target.result, copy)) store.put(copy);
      };
    };
  });
  channel.postMessage({ conversation });
}

function isNewer(known, { attempt, sequence }) {
  if (!known) return false;
  return known.attempt > attempt || (known.attempt === attempt && known.sequence > sequence);
}

// The stored state of an answer, if it has ended.
export async function ended({ conversation, id, attempt }) {
  const stored = await read("messages", (store) => store.get([conversation, id]));
  return stored?.attempt === attempt && stored?.status !== "running" ? stored : {};
}

export async function saveImage(conversation, id, blob) {
  await write(["images"], (store) => store.put({ conversation, id, blob }));
}

export async function addAll({ conversation, messages, images }) {
  await write(["conversations", "messages", "images"], (heads, bodies, pictures) => {
    heads.put(conversation);
    messages.forEach((message) => bodies.put(message));
    images.forEach((image) => pictures.put(image));
  });
  channel.postMessage({ conversation: conversation.id });
}

export async function remove(conversation) {
  await write(["conversations", "messages", "images"], (heads, ...others) => {
    heads.delete(conversation);
    for (const store of others) {
      store.index("conversation").openKeyCursor(conversation).onsuccess = ({ target }) => {
        if (!target.result) return;
        store.delete(target.result.primaryKey);
        target.result.continue();
      };
    }
  });
  channel.postMessage({ conversation });
}

export async function removeAll() {
  await write(["conversations", "messages", "images"], (...stores) => {
    stores.forEach((store) => store.clear());
  });
  channel.postMessage({ all: true });
}
