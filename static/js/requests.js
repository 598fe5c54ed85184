// Buttons that stop requests. Rows move while requests end, so a dialog asks which one is meant.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { confirmed } from "./confirm.js";
import { t } from "./text.js";

class Requests extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      const button = event.target.closest("[data-stop]");
      if (button) this.stop(button.dataset);
    });
  }

  async stop({ stop: id, model }) {
    const problem = document.querySelector("[data-stop-problem]");
    problem.hidden = true;
    if (!(await confirmed("stop", t("ui.requests.stop.question", { model, id })))) return;
    try {
      await send("POST", `/requests/${encodeURIComponent(id)}/stop`);
      announce(t("ui.requests.stopped"));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    document.dispatchEvent(new CustomEvent("omlx:changed"));
  }
}

customElements.define("omlx-requests", Requests);
