// The models of the server, what they can do, and the one that is chosen.

import { send } from "../api.js";
import { t } from "../text.js";

// Dispatches `change` with a choice of the user's, and `facts` whenever what is known of the chosen
// model may have changed.
export class Models extends EventTarget {
  known = new Map();

  constructor(chosen) {
    super();
    this.chosen = chosen;
    document.addEventListener("omlx:changed", () => this.load());
  }

  // Ask the server again; without an answer everything stays as it was.
  async load() {
    try {
      const { body } = await send("GET", "/chat/models");
      const chats = body.data.filter(({ capabilities }) => capabilities.includes("completion"));
      this.known = new Map(chats.map((model) => [model.id, model]));
    } catch {
      return;
    }
    this.#tell("facts");
  }

  // A conversation may name a model that is gone; the server will say so.
  choose(id) {
    if (!id) return;
    this.chosen = id;
    this.#tell("facts");
  }

  pick(id) {
    this.choose(id);
    this.#tell("change");
  }

  get facts() {
    return this.known.get(this.chosen);
  }

  get sees() {
    return this.facts?.input_modalities.includes("image") ?? false;
  }

  // Why the chosen model reads no images, as a sentence; empty if it does.
  get blindness() {
    const reason = this.facts?.no_vision;
    if (!reason) return "";
    const { code, params } = reason;
    return t("ui.chat.image.blind", { model: this.chosen, reason: t(code, params) });
  }

  get thinks() {
    return this.facts?.capabilities.includes("reasoning") ?? false;
  }

  // Those whose name has every word of a text, in the server's order. Models that only draft for
  // another one are found by name alone.
  matching(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return [...this.known.values()].filter(({ id, drafts_for_others: drafts }) => {
      if (!words.length) return !drafts || id === this.chosen;
      return words.every((word) => id.toLowerCase().includes(word));
    });
  }

  #tell(name) {
    this.dispatchEvent(new Event(name));
  }
}
