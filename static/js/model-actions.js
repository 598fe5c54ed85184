// Buttons that load, unload and pin models. The live part around them shows the result.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { confirmed } from "./confirm.js";
import { pressed, watchActions } from "./settling.js";
import { t } from "./text.js";

const STOPPED = "model.load_cancelled";

class Models extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      const button = pressed(event);
      if (button) this.press(button);
    });
    this.changes = watchActions(this);
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
      if (!(await confirmed("unload", error.message))) return;
      const request = send("POST", modelPath(model, "unload"));
      changed();
      await request;
    }
    announce(t("ui.models.done.unload", { model }));
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

function changed() {
  document.dispatchEvent(new CustomEvent("omlx:changed"));
}

customElements.define("omlx-models", Models);
