// Search in the texts of all conversations while one types. They are read once, where the store has
// none a few conversations at a time, so that the page stays quick, and then as they change.

const AT_ONCE = 16; // conversations
const AROUND = 40; // characters of an excerpt on either side of the hit

export class SearchIndex {
  #texts = new Map(); // by conversation: { messages, lower }
  #reading = null;

  // `store` has `conversations`, `keptTexts` and `gatherTexts`.
  constructor(store) {
    this.store = store;
  }

  // Resolve when all are read.
  ready() {
    this.#reading ??= this.#readAll();
    return this.#reading;
  }

  // Conversations have changed, or all of them are gone.
  async changed({ conversation, conversations = [conversation], all }) {
    if (this.#reading === null) return;
    await this.#reading;
    if (all) this.#texts.clear();
    else for (const id of conversations) await this.#read(id);
  }

  // The excerpts around the first hit in each conversation, by its id: { message, before, hit, after }.
  find(sought) {
    const wanted = sought.toLowerCase();
    const hits = new Map();
    for (const [conversation, { messages, lower }] of this.#texts) {
      if (!lower.includes(wanted)) continue;
      const message = messages.find(({ text }) => text.toLowerCase().includes(wanted));
      if (message) hits.set(conversation, { message: message.id, ...excerpt(message.text, wanted) });
    }
    return hits;
  }

  async #readAll() {
    for (const { conversation, messages } of await this.store.keptTexts()) {
      this.#add(conversation, messages);
    }
    const ids = (await this.store.conversations()).map(({ id }) => id);
    const missing = ids.filter((id) => !this.#texts.has(id));
    for (let from = 0; from < missing.length; from += AT_ONCE) {
      await Promise.all(missing.slice(from, from + AT_ONCE).map((id) => this.#read(id)));
    }
  }

  async #read(conversation) {
    this.#add(conversation, await this.store.gatherTexts(conversation));
  }

  #add(conversation, messages) {
    const lower = messages.map(({ text }) => text.toLowerCase()).join("\n");
    if (messages.length) this.#texts.set(conversation, { messages, lower });
    else this.#texts.delete(conversation);
  }
}

// The words around a hit, on one line. `wanted` is in lower case.
export function excerpt(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted);
  const end = at + wanted.length;
  const start = Math.max(0, at - AROUND);
  const line = (part) => part.replace(/\s+/g, " ");
  const before = line(text.slice(start, at)).trimStart();
  const after = line(text.slice(end, end + AROUND)).trimEnd();
  return {
    before: start > 0 ? `…${before}` : before,
    hit: line(text.slice(at, end)),
    after: end + AROUND < text.length ? `${after}…` : after,
  };
}
