// Buttons that load, unload and pin models. The live part around them shows the result. A button
// that has changed its meaning ignores clicks for a second: they were meant for the old one.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { t } from "./text.js";

const SETTLING_MS = 1000;
const STOPPED = "model.load_cancelled";

class Models extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      if (button && !("settling" in button.dataset)) this.press(button);
    });
    this.changes = new MutationObserver((records) => records.forEach(({ target }) => settle(target)));
    this.changes.observe(this, { subtree: true, attributeFilter: ["data-action"] });
  }

  disconnectedCallback() {
    this.changes.disconnect();
  }

  async press(button) {
    const { action, model } = button.dataset;
    const problem = (button.closest(".model") ?? this).querySelector("[data-problem]");
    problem.hidden = true;
    try {
      await this.act(action, model);
    } catch (error) {
      if (error.code === STOPPED) return; // by its own button, here or in another window
      problem.textContent = `${model}: ${error.message}`;
      problem.hidden = false;
      problem.scrollIntoView({ block: "nearest" });
    }
    changed();
  }

  async act(action, model) {
    if (action === "none") return;
    if (action === "unload") return this.unload(model);
    const request = requests[action](model);
    changed();
    await request;
    announce(t(`ui.models.done.${action}`, { model }));
  }

  // Ask first if requests use the model: new ones would wait until it is loaded again.
  async unload(model) {
    try {
      await send("POST", modelPath(model, "unload"), { if_idle: true });
    } catch (error) {
      if (error.code !== "model.in_use") throw error;
      if (!(await this.confirmed(error.message))) return;
      const request = send("POST", modelPath(model, "unload"));
      changed();
      await request;
    }
    announce(t("ui.models.done.unload", { model }));
  }

  confirmed(question) {
    const dialog = this.querySelector("[data-confirm]");
    dialog.querySelector("[data-question]").textContent = question;
    dialog.returnValue = "";
    dialog.showModal();
    return new Promise((resolve) => {
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    });
  }
}

const requests = {
  load: (model) => send("POST", modelPath(model, "load")),
  stop: (model) => send("POST", modelPath(model, "unload")),
  pin: async (model) => {
    await pin(model, true); // which starts to load it
    changed();
    await send("POST", modelPath(model, "load"));
  },
  unpin: (model) => pin(model, null),
};

async function pin(model, pinned) {
  const path = modelPath(model, "settings");
  const { etag } = await send("GET", path);
  await send("PATCH", path, { changes: { pinned } }, { etag });
}

const settled = new WeakMap();

function settle(button) {
  clearTimeout(settled.get(button));
  button.dataset.settling = "";
  settled.set(button, setTimeout(() => delete button.dataset.settling, SETTLING_MS));
}

function changed() {
  document.dispatchEvent(new CustomEvent("omlx:changed"));
}

customElements.define("omlx-models", Models);
