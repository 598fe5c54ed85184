// Measure how exact the passes of a model are; the live part shows the result.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { clear as clearProblems, show } from "./form-problem.js";
import { t } from "./text.js";

class Exactness extends HTMLElement {
  connectedCallback() {
    this.querySelector("[data-measure]").addEventListener("click", (event) =>
      this.measure(event.currentTarget),
    );
  }

  async measure(button) {
    clearProblems(this);
    button.disabled = true;
    announce(t("ui.exactness.measuring"));
    try {
      await send("POST", modelPath(this.dataset.model, "exactness"));
      await this.querySelector("omlx-live").refresh();
      announce(t("ui.exactness.done"));
    } catch (error) {
      show(this, error);
    } finally {
      button.disabled = false;
    }
  }
}

customElements.define("omlx-exactness", Exactness);
