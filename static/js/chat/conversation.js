// One conversation of this browser: its head, its messages and images, as they are stored.

import { begun, newAnswer } from "./answer-events.js";
import * as store from "./store.js";
import { newestLeaf, path, titleOf } from "./tree.js";

export class Conversation {
  // `head`: { id, title, titled, folder, pinned, created, updated, leaf, settings }; stored with the
  // first question. `titled`: by the "user" or the "model"; else it is the question's beginning.
  constructor(head, messages = new Map(), images = new Map()) {
    this.head = head;
    this.messages = messages;
    this.images = images;
  }

  static begin(settings) {
    const now = Date.now();
    const head = { id: newId(), title: "", created: now, updated: now, leaf: null };
    return new Conversation({ ...head, settings: { ...settings } });
  }

  // null: there is none of this id.
  static async open(id) {
    const head = (await store.conversations()).find((each) => each.id === id);
    if (!head) return null;
    return new Conversation(head, await store.messagesOf(id), await store.imagesOf(id));
  }

  get id() {
    return this.head.id;
  }

  get isEmpty() {
    return this.messages.size === 0;
  }

  get path() {
    return path(this.messages, this.head.leaf);
  }

  get(id) {
    return this.messages.get(id);
  }

  // `files`: as of attachments.js, or { id } instead of a blob that the conversation has.
  async addQuestion(text, files, parent) {
    this.head.title ||= titleOf(text) || files[0]?.name || "";
    const shown = [];
    for (const { id = newId(), blob, ...facts } of files) {
      shown.push({ id, ...facts });
      if (blob) this.images.set(id, blob);
    }
    const question = { role: "user", text, images: shown, parent, ...this.#fresh() };
    this.messages.set(question.id, question);
    await this.select(question.id);
    for (const { id } of shown) await store.saveImage(this.id, id, this.images.get(id));
    await store.saveMessage(question);
    return question;
  }

  // `fields`: at least the model and the seed.
  async addAnswer(parent, fields) {
    const answer = newAnswer({ parent, ...fields, ...this.#fresh() });
    this.messages.set(answer.id, answer);
    if (!answer.twin) await this.select(answer.id);
    await store.saveMessage(answer);
    return answer;
  }

  // Empty an answer, to generate it again in its place, or keep its text, to continue it.
  async begin(answer, { continues = false } = {}) {
    const { id, conversation, parent, model, seed, twin, versus, settings, attempt } = answer;
    const kept = { id, conversation, parent, model, seed, settings, created: Date.now() };
    const text = continues ? begun(answer) : {};
    for (const name of Object.keys(answer)) delete answer[name];
    Object.assign(answer, newAnswer({ ...kept, ...text, attempt: attempt + 1 }));
    if (twin) Object.assign(answer, { twin, versus });
    await store.saveMessage(answer);
  }

  // Add what the user has made of an answer, a branch of its own.
  async addEdited(answer, text) {
    const { parent, model, seed, settings, reasoning } = answer;
    const fields = { parent, model, seed, settings, reasoning, text, status: "done", edited: true };
    return this.addAnswer(parent, fields);
  }

  // Take away an answer that stands beside another one.
  async dropTwin(twin) {
    this.messages.delete(twin.id);
    await store.removeMessage(twin);
  }

  // Make a branch of an answer that stands beside another one.
  async adoptTwin(twin) {
    delete twin.twin;
    delete twin.versus;
    await store.saveMessage(twin);
    await this.select(twin.id);
  }

  // Show the branch with this message.
  async select(id) {
    this.head.leaf = newestLeaf(this.messages, id);
    await this.touch();
  }

  async touch() {
    this.head.updated = Date.now();
    await this.saveHead();
  }

  async saveHead() {
    if (!this.isEmpty) await store.saveConversation({ ...this.head });
  }

  // Change title, folder or pin.
  async organise(fields) {
    Object.assign(this.head, fields);
    await store.changeConversation(this.id, fields);
  }

  // Take in what another window has stored. Messages that `follows` are newer here.
  async reload(follows) {
    const stored = await Conversation.open(this.id);
    if (stored === null) return false;
    for (const [id, message] of stored.messages) {
      const known = this.messages.get(id);
      if (!known) this.messages.set(id, message);
      else if (!follows(id)) Object.assign(known, message);
    }
    for (const { id, twin } of [...this.messages.values()]) {
      if (twin && !stored.messages.has(id) && !follows(id)) this.messages.delete(id);
    }
    this.images = stored.images;
    for (const name of ["title", "titled", "folder", "pinned"]) this.head[name] = stored.head[name];
    if (stored.head.updated > this.head.updated) Object.assign(this.head, stored.head);
    return true;
  }

  // Data URIs of the images of `turns`, by id.
  async dataURIs(turns) {
    const uris = new Map();
    for (const { id } of turns.flatMap(({ images = [] }) => images)) {
      if (this.images.has(id)) uris.set(id, await dataURI(this.images.get(id)));
    }
    return uris;
  }

  #fresh() {
    return { id: newId(), conversation: this.id, created: Date.now() };
  }
}

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), hex).join("");
}

function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}

export function dataURI(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
