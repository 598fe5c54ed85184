// Search of the hub, and the buttons that download, pause, continue, discard and delete. The live
// parts show the result; a download that becomes complete is announced.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { confirmed } from "./confirm.js";
import { pressed, watchActions } from "./settling.js";
import { t } from "./text.js";

const RESULTS = "/admin/parts/downloads/results";

class Get extends HTMLElement {
  connectedCallback() {
    this.states = this.downloads();
    this.form = this.querySelector("form[role=search]");
    this.form?.addEventListener("submit", (event) => this.search(event));
    this.addEventListener("click", (event) => {
      const button = pressed(event);
      if (button) this.press(button);
    });
    this.addEventListener("omlx:refreshed", () => this.announceEnds());
    this.changes = watchActions(this);
  }

  disconnectedCallback() {
    this.changes.disconnect();
  }

  async search(event) {
    event.preventDefault();
    const { text } = this.form.elements;
    this.problem(this.form.querySelector("[data-search-problem]"), "");
    this.searching(true);
    try {
      const { body } = await send("POST", "/downloads/search", { text: text.value });
      const results = this.querySelector("[data-results]");
      results.dataset.source = `${RESULTS}?${new URLSearchParams({ q: body.text })}`;
      await results.refresh();
      results.querySelector("#results").focus();
    } catch (error) {
      this.problem(this.form.querySelector("[data-search-problem]"), error.message);
      text.focus();
    }
    this.searching(false);
  }

  searching(on) {
    const button = this.form.querySelector("button");
    button.setAttribute("aria-disabled", on);
    button.textContent = t(on ? "ui.get.searching" : "ui.get.search.do");
    if (on) announce(t("ui.get.searching"));
  }

  async press(button) {
    const place = button.closest(".model").querySelector("[data-problem]");
    const { question } = button.dataset;
    this.problem(place, "");
    if (question && !(await confirmed("delete", question))) return;
    try {
      await this.act(button);
    } catch (error) {
      this.problem(place, error.message);
    }
    document.dispatchEvent(new CustomEvent("omlx:changed"));
  }

  async act(button) {
    const { action, model, then } = button.dataset;
    const path = address(model);
    if (action === "none") return;
    if (action === "start") await start(button);
    else if (action === "pause") await send("POST", `/downloads/${path}/pause`);
    else if (action === "discard") await send("DELETE", `/downloads/${path}`);
    else if (action === "delete") await send("DELETE", `/models/${path}`);
    else await send("POST", `/downloads/${path}/resume`);
    announce(t(`ui.get.did.${action}`, { model }));
    if (action === "delete") document.querySelector("#own").focus();
    if (then) location.assign(then);
  }

  downloads() {
    const rows = [...this.querySelectorAll("[id^='download-']")];
    return new Map(rows.map(({ id, dataset }) => [id, dataset.state]));
  }

  announceEnds() {
    const now = this.downloads();
    for (const [id, state] of now) {
      const before = this.states.get(id);
      if (before === state || !["done", "failed"].includes(state)) continue;
      const { model } = document.getElementById(id).dataset;
      announce(t(`ui.get.ended.${state}`, { model }));
    }
    this.states = now;
  }

  problem(place, message) {
    place.textContent = message;
    place.hidden = !message;
  }
}

// The draft goes along while its box is ticked.
function start(button) {
  const { model } = button.dataset;
  const box = button.closest(".model").querySelector("[data-draft]:checked");
  const draft = box && { draft: box.dataset.draft, declared: "declared" in box.dataset };
  return send("POST", "/downloads", { model, ...draft });
}

// The slashes of a name are kept.
function address(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

customElements.define("omlx-get", Get);
