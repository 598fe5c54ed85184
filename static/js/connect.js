// Snippets that connect clients, for the model that is chosen above them.

import { morph } from "./morph.js";

class Connect extends HTMLElement {
  connectedCallback() {
    this.addEventListener("change", ({ target }) => this.show(target.value));
  }

  async show(model) {
    const answer = await fetch(`${this.dataset.source}?${new URLSearchParams({ model })}`);
    if (answer.ok) morph(this, await answer.text());
  }
}

customElements.define("omlx-connect", Connect);
