// The benchmark of a model: start, stop, choose which stored runs are shown. The server renders the
// progress and the figures.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { pressed, watchActions } from "./settling.js";
import { t } from "./text.js";

class Benchmark extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.live = this.querySelector("omlx-live");
    this.state = this.shownState();
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.addEventListener("change", ({ target }) => this.choose(target));
    this.addEventListener("click", (event) => {
      const button = pressed(event);
      if (button) this.press(button);
    });
    this.addEventListener("omlx:refreshed", () => this.refreshed());
    this.changes = watchActions(this);
  }

  disconnectedCallback() {
    this.changes.disconnect();
  }

  // Another model begins with its newest run, on a page with the lengths of its context.
  choose({ name, form }) {
    if (name === "longest") return;
    if (name === "model") return form.submit();
    const runs = [...this.live.querySelectorAll("select")];
    this.show(runs.map((select) => [select.name, select.value]));
    this.live.refresh();
  }

  // `runs`: pairs of a field's name and the run that is chosen in it; none for the newest run.
  show(runs) {
    const { value } = this.form.elements.model;
    const model = value.split("/").map(encodeURIComponent).join("/");
    history.replaceState(null, "", `?${new URLSearchParams([["model", value], ...runs])}`);
    this.live.dataset.source = `/admin/parts/benchmark/${model}?${new URLSearchParams(runs)}`;
  }

  async press({ dataset: { action, model } }) {
    const path = modelPath(model, "benchmark");
    const problem = this.querySelector("[data-problem]");
    problem.hidden = true;
    try {
      if (action === "stop") await send("POST", `${path}/stop`);
      else await this.start(path);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    await this.live.refresh();
  }

  async start(path) {
    await send("POST", path, { longest: Number(this.form.elements.longest.value) });
    this.show([]);
  }

  shownState() {
    return this.querySelector("[data-state]")?.dataset.state;
  }

  refreshed() {
    const before = this.state;
    this.state = this.shownState();
    if (before === this.state || this.state === "paused") return;
    if (this.state === "idle") {
      const hint = this.querySelector("[data-state] .hint");
      announce(hint?.textContent.trim() ?? t("ui.bench.done"));
    } else if (before === "idle") announce(t("ui.bench.begun"));
  }
}

customElements.define("omlx-benchmark", Benchmark);
