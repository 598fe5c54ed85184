// What is typed in each conversation and not sent yet: the browser keeps it.

import * as store from "./store.js";

const EVERY_MS = 150;
const LEFT = "omlx-draft";

export class Drafts {
  // `key`: of the conversation whose draft the composer has; undefined at first.
  constructor(composer) {
    this.composer = composer;
    this.savedAt = 0;
    composer.addEventListener("typed", () => this.#typed());
    addEventListener("pagehide", () => this.#leave());
  }

  // Show the draft of a conversation. What is typed while the page loads stays.
  async show(conversation) {
    this.#save();
    const isFirst = this.key === undefined;
    this.key = keyOf(conversation);
    const kept = (await store.draftOf(this.key)) ?? { text: "" };
    const draft = isFirst ? { ...kept, ...this.#left() } : kept;
    if (!isFirst || !this.composer.field.value) this.composer.fill(draft);
  }

  // A new conversation has become this one.
  move(conversation) {
    this.#save();
    this.key = keyOf(conversation);
  }

  // A database may not finish what a page begins as it is left.
  #leave() {
    this.#save();
    if (this.key === undefined) return;
    sessionStorage.setItem(LEFT, JSON.stringify({ key: this.key, text: this.composer.field.value }));
  }

  // What was typed when this tab left the conversation a moment ago.
  #left() {
    const { key, text } = JSON.parse(sessionStorage.getItem(LEFT) ?? "{}");
    sessionStorage.removeItem(LEFT);
    return key === this.key && text !== undefined ? { text } : {};
  }

  // The first key is saved at once, those that follow it together.
  #typed() {
    clearTimeout(this.timer);
    const left = EVERY_MS - (Date.now() - this.savedAt);
    if (left > 0) this.timer = setTimeout(() => this.#save(), left);
    else this.#save();
  }

  #save() {
    clearTimeout(this.timer);
    if (this.key === undefined) return;
    this.savedAt = Date.now();
    store.saveDraft(this.key, { text: this.composer.field.value, files: this.composer.files });
  }
}

function keyOf(conversation) {
  return conversation.isEmpty ? "" : conversation.id;
}
