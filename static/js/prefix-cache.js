// The prefix cache of a model: clear it, and probe the cached length of a prompt.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { clear as clearProblems, show } from "./form-problem.js";
import { t } from "./text.js";

class Prefixes extends HTMLElement {
  connectedCallback() {
    this.path = modelPath(this.dataset.model, "prefixes");
    this.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.attempt(this.probe(new FormData(event.target).get("prompt")));
    });
    this.addEventListener("click", (event) => {
      if (event.target.closest("[data-clear]")) this.attempt(this.clear());
    });
  }

  async attempt(request) {
    clearProblems(this);
    this.say("");
    await request.catch((error) => show(this, error));
  }

  async clear() {
    await send("DELETE", this.path);
    await this.querySelector("omlx-live").refresh();
    announce(t("ui.prefixes.cleared"));
  }

  async probe(prompt) {
    const { body } = await send("POST", `${this.path}/probe`, { prompt });
    const { prompt_tokens: tokens, cached_tokens: cached } = body;
    if (cached === null) this.say(t("ui.prefixes.found.unloaded", { tokens }));
    else this.say(t("ui.prefixes.found", { kept: cached, tokens }));
  }

  say(text) {
    this.querySelector("[data-found]").textContent = text;
  }
}

customElements.define("omlx-prefixes", Prefixes);
