// Buttons that verify kept answers. A dialog, outside of the live rows, shows what the server finds.

import { send } from "./api.js";
import { t } from "./text.js";

class Verify extends HTMLElement {
  connectedCallback() {
    this.dialog = this.querySelector("dialog");
    this.dialog.addEventListener("close", () => this.request?.abort());
    this.addEventListener("click", (event) => {
      const button = event.target.closest("[data-verify]");
      if (button) this.verify(button.dataset.verify);
    });
  }

  async verify(id) {
    this.request = new AbortController();
    const { signal } = this.request;
    this.part("answer").textContent = id;
    this.show({ running: true });
    this.dialog.showModal();
    try {
      const path = `/requests/${encodeURIComponent(id)}/verify`;
      const { body } = await send("POST", path, undefined, { signal });
      this.show({ verdict: body });
    } catch (error) {
      if (error.name !== "AbortError") this.show({ problem: error.message });
    }
  }

  show({ running = false, problem = "", verdict }) {
    this.part("running").hidden = !running;
    this.part("problem").hidden = !problem;
    this.part("problem").textContent = problem;
    this.part("same").hidden = !verdict?.same;
    this.part("other").hidden = !verdict || verdict.same;
    this.part("reasons").replaceChildren(...reasons(verdict?.choices ?? []));
  }

  part(name) {
    return this.dialog.querySelector(`[data-${name}]`);
  }
}

// The sentences of all choices as items; of several choices, each begins with its id.
function reasons(choices) {
  return choices.flatMap(({ id, reasons }) =>
    reasons.map(({ code, params }) => {
      const item = document.createElement("li");
      item.textContent = (choices.length > 1 ? `${id}: ` : "") + t(code, params);
      return item;
    }),
  );
}

customElements.define("omlx-verify", Verify);
