// Kept prefixes: forgets them, and says how much of a prompt is kept.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { clear, show } from "./form-problem.js";
import { t } from "./text.js";

class Prefixes extends HTMLElement {
  connectedCallback() {
    this.path = modelPath(this.dataset.model, "prefixes");
    this.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.attempt(this.probe(new FormData(event.target).get("prompt")));
    });
    this.addEventListener("click", (event) => {
      if (event.target.closest("[data-clear]")) this.attempt(this.forget());
    });
  }

  async attempt(doing) {
    clear(this);
    this.say("");
    await doing.catch((error) => show(this, error));
  }

  async forget() {
    await send("DELETE", this.path);
    await this.querySelector("omlx-live").look();
    announce(t("ui.prefixes.cleared"));
  }

  async probe(prompt) {
    const { body } = await send("POST", `${this.path}/probe`, { prompt });
    const { prompt_tokens: tokens, cached_tokens: kept } = body;
    this.say(kept === null ? t("ui.prefixes.found.unloaded", { tokens }) : t("ui.prefixes.found", { kept, tokens }));
  }

  say(text) {
    this.querySelector("[data-found]").textContent = text;
  }
}

customElements.define("omlx-prefixes", Prefixes);
