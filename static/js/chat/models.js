// The models of the server, and what they can do; asked for again whenever the choice is opened.

import { send } from "../api.js";

export class Models {
  known = new Map();

  // `select`: the choice, with what the server has rendered.
  constructor(select) {
    this.select = select;
    const again = () => this.load().catch(() => {}); // the choice stays as it was
    select.addEventListener("focus", again);
    select.addEventListener("pointerdown", again);
    document.addEventListener("omlx:changed", again);
  }

  async load() {
    const { body } = await send("GET", "/chat/models");
    const chats = body.data.filter(({ capabilities }) => capabilities.includes("completion"));
    this.known = new Map(chats.map((model) => [model.id, model]));
    this.#offer();
    this.select.dispatchEvent(new Event("omlx:models"));
  }

  get chosen() {
    return this.select.value;
  }

  // A conversation may name a model that is gone; the server will say so.
  choose(id) {
    if (!id) return;
    if (![...this.select.options].some(({ value }) => value === id)) this.#add(id);
    this.select.value = id;
    this.select.dispatchEvent(new Event("omlx:models"));
  }

  get facts() {
    return this.known.get(this.chosen);
  }

  get sees() {
    return this.facts?.input_modalities.includes("image") ?? false;
  }

  get thinks() {
    return this.facts?.capabilities.includes("reasoning") ?? false;
  }

  #offer() {
    const offered = new Map([...this.select.options].map((option) => [option.value, option]));
    for (const id of this.known.keys()) if (!offered.has(id)) this.#add(id);
    for (const [id, option] of offered) {
      if (!this.known.has(id) && id !== this.chosen) option.remove();
    }
  }

  #add(id) {
    this.select.append(new Option(id, id));
  }
}
