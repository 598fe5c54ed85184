// Buttons that load, unload and pin models. The live part around them shows the result.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { t } from "./text.js";

class Models extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (button) this.act(button);
    });
  }

  async act({ dataset: { action, model }, ariaPressed }) {
    const problem = this.querySelector("[data-problem]");
    problem.hidden = true;
    try {
      const request = action === "pin"
        ? pin(model, ariaPressed !== "true")
        : send("POST", modelPath(model, action));
      changed();
      await request;
      announce(t(`ui.models.done.${action}`, { model }));
    } catch (error) {
      problem.textContent = `${model}: ${error.message}`;
      problem.hidden = false;
    }
    changed();
  }
}

async function pin(model, pinned) {
  const path = modelPath(model, "settings");
  const { etag } = await send("GET", path);
  await send("PATCH", path, { changes: { pinned: pinned || null } }, { etag });
}

function changed() {
  document.dispatchEvent(new CustomEvent("omlx:changed"));
}

customElements.define("omlx-models", Models);
