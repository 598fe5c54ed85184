// Conversations that the server keeps, too: what has changed here is sent, what has changed there is
// fetched and joined, message by message. What could not be sent is sent later.

import { send } from "../api.js";
import { t } from "../text.js";
import { dataURI } from "./conversation.js";
import { blobOf } from "./files.js";
import * as store from "./store.js";

const PATH = "/chat/conversations";
const KNOWN = "omlx-chat-versions"; // by conversation, as this browser has them
const UNSENT = "omlx-chat-unsent"; // ids
const ALL = "*"; // among them: all were deleted
const SOON_MS = 1000;
const EVERY_MS = 15_000;

export class Sync {
  #known = new Map(load(KNOWN));
  #unsent = new Set(load(UNSENT));
  #running = null;

  // `show` is called with what the server refuses, "" once it does not.
  constructor(show) {
    this.show = show;
  }

  start() {
    store.onOwnChange(({ conversation, all }) => {
      this.#unsent.add(all ? ALL : conversation);
      this.#keep();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.run(), SOON_MS);
    });
    setInterval(() => document.visibilityState === "visible" && this.run(), EVERY_MS);
    return this.run();
  }

  // Resolve when all that can be is sent and fetched. A server that is away is asked again later.
  run() {
    this.#running ??= this.#exchange()
      .catch(() => {})
      .finally(() => {
        this.#running = null;
      });
    return this.#running;
  }

  async #exchange() {
    if (this.#unsent.has(ALL)) await this.#deleteAll();
    const { data } = (await send("GET", PATH)).body;
    const heads = new Map((await store.conversations()).map((head) => [head.id, head]));
    const changed = [];
    for (const { id, version, deleted } of data) {
      if (this.#known.get(id) === version) continue;
      if (!deleted) await this.#fetch(id);
      else if (heads.has(id) && !this.#unsent.has(id)) await store.remove(id, { isTold: false });
      if (deleted) heads.delete(id);
      this.#known.set(id, version);
      changed.push(id);
    }
    if (changed.length) store.tell({ conversations: changed });
    const there = new Set(data.map(({ id }) => id));
    const missing = [...heads.keys()].filter((id) => !there.has(id));
    let refused = "";
    for (const id of new Set([...this.#unsent, ...missing])) refused = (await this.#send(id)) || refused;
    this.#keep();
    this.show(refused && t("ui.chat.unsent", { reason: refused }));
  }

  async #deleteAll() {
    await send("DELETE", PATH);
    this.#unsent.delete(ALL);
  }

  async #fetch(id) {
    const { head, messages, images } = (await send("GET", `${PATH}/${id}`)).body;
    const stored = ({ id: image, uri }) => ({ conversation: id, id: image, blob: blobOf(uri) });
    const keepsHead = this.#unsent.has(id);
    await store.join({ head, messages, images: images.map(stored) }, { keepsHead });
  }

  // Resolve to why the server refuses it, "" if it does not.
  async #send(id) {
    const head = (await store.conversations()).find((each) => each.id === id);
    const messages = [...(await store.messagesOf(id)).values()];
    if (messages.some(({ status }) => status === "running")) return ""; // its end comes
    this.#unsent.delete(id);
    try {
      if (head) await this.#put(head, messages);
      else await send("DELETE", `${PATH}/${id}`);
      return "";
    } catch (error) {
      this.#unsent.add(id);
      return error.message;
    }
  }

  async #put(head, messages) {
    const images = [];
    for (const [id, blob] of await store.imagesOf(head.id)) {
      images.push({ id, uri: await dataURI(blob) });
    }
    const { body } = await send("PUT", `${PATH}/${head.id}`, { head, messages, images });
    this.#known.set(head.id, body.version);
  }

  #keep() {
    localStorage.setItem(KNOWN, JSON.stringify([...this.#known]));
    localStorage.setItem(UNSENT, JSON.stringify([...this.#unsent]));
  }
}

function load(name) {
  return JSON.parse(localStorage.getItem(name) ?? "[]");
}
