// A trial of drafts: estimate, start, follow, cancel; apply its result and undo that. The server
// renders the progress and the result; only the progress bar moves here, between two refreshes.

import { announce } from "./announce.js";
import { modelPath, send } from "./api.js";
import { clear, show } from "./form-problem.js";
import { t } from "./text.js";

const OVER = ["done", "cancelled", "failed"];
const PAUSE_MS = 250;

class Trial extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.live = this.querySelector(".try-outcome");
    this.path = modelPath(this.dataset.model, "trial");
    this.picture = "";
    this.form.addEventListener("change", ({ target }) => this.changed(target));
    this.form.addEventListener("omlx:refreshed", () => this.estimateSoon());
    this.form.addEventListener("submit", (event) => this.start(event));
    this.addEventListener("click", (event) => this.pressed(event.target.closest("[data-do]")));
    this.estimateSoon();
    if (this.hasAttribute("data-running")) this.follow();
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
    this.estimating?.abort();
    this.events?.close();
  }

  selection() {
    const data = new FormData(this.form);
    const selection = { drafts: data.getAll("drafts"), kinds: data.getAll("kinds") };
    if (!this.picture) return selection;
    return { ...selection, kinds: [...selection.kinds, "picture"], picture: this.picture };
  }

  async changed(control) {
    if (control.type === "file") await this.choosePicture(control);
    this.estimateSoon();
  }

  // Keep the chosen file as a data URI.
  async choosePicture({ files: [file] }) {
    try {
      this.picture = file ? await dataUri(file) : "";
    } catch {
      this.picture = "";
      this.problem({ field: "picture", message: t("ui.try.picture.unread") });
    }
    this.querySelector('[data-do="removePicture"]').hidden = !this.picture;
  }

  async removePicture(button) {
    const input = this.querySelector('input[type="file"]');
    input.value = "";
    input.focus();
    button.hidden = true;
    this.picture = "";
    this.estimateSoon();
  }

  estimateSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.estimate(), PAUSE_MS);
  }

  // Only the newest estimate counts: an older request is aborted.
  async estimate() {
    this.estimating?.abort();
    this.estimating = new AbortController();
    const place = this.querySelector("[data-estimate]");
    try {
      const { signal } = this.estimating;
      const { body } = await send("POST", `${this.path}/estimate`, this.selection(), { signal });
      clear(this.form);
      place.textContent = body.said.map((reason) => reason.message).join(" ");
    } catch (error) {
      if (error.name === "AbortError") return;
      place.textContent = "";
      this.problem(error);
    }
  }

  async start(event) {
    event.preventDefault();
    this.clear();
    try {
      await send("POST", this.path, this.selection());
    } catch (error) {
      return this.problem(error);
    }
    this.toggleAttribute("data-running", true);
    await this.live.refresh();
    this.querySelector('[data-do="cancel"]')?.focus();
    announce(t("ui.try.running"));
    this.follow();
  }

  follow() {
    let seen = "";
    this.events = new EventSource(`/admin/api${this.path}/events`);
    this.events.onmessage = ({ data }) => {
      const report = JSON.parse(data);
      this.move(report);
      const now = `${report.state} ${report.done}`;
      if (now !== seen) this.live.refresh();
      seen = now;
      if (OVER.includes(report.state)) this.ended(report);
    };
  }

  move({ done, total, tokens, now }) {
    const bar = this.querySelector("[data-progress]");
    if (!bar) return;
    bar.max = total;
    bar.value = done + (now ? Math.min(1, now.tokens / tokens) : 0);
  }

  async ended({ verdict, reason }) {
    this.events.close();
    await this.live.refresh();
    this.toggleAttribute("data-running", false);
    this.querySelector("#try-verdict")?.focus();
    announce(verdict?.message ?? reason?.message ?? t("ui.try.cancelled"));
    this.estimateSoon();
  }

  pressed(button) {
    if (button) this[button.dataset.do](button).catch((error) => this.problem(error));
  }

  async cancel() {
    await send("POST", `${this.path}/cancel`);
  }

  async apply({ dataset: { setup } }) {
    await this.store("apply", setup && { setup });
    this.querySelector("#try-undo")?.focus();
  }

  async undo() {
    await this.store("undo");
    this.querySelector("#try-apply")?.focus();
  }

  async write() {
    this.clear();
    const { body } = await send("POST", `${this.path}/write`);
    this.say(t("ui.try.written", { file: body.file }));
    await this.refreshForm();
  }

  async store(action, choice) {
    this.clear();
    const { body } = await send("POST", `${this.path}/${action}`, choice);
    const path = modelPath(this.dataset.model, "settings");
    const detail = { path: decodeURI(path), etag: body.revision };
    document.dispatchEvent(new CustomEvent("omlx:saved", { detail }));
    document.dispatchEvent(new CustomEvent("omlx:changed"));
    await Promise.all([this.live.refresh(), this.refreshForm()]);
    this.say(t(`ui.try.did.${action}`));
  }

  // Show the stored settings in the form above, unless it has unsaved input.
  async refreshForm() {
    const form = document.querySelector('omlx-settings[data-form="speculation"]');
    if (form && Object.keys(form.changes()).length === 0) await form.refresh();
  }

  say(text) {
    this.querySelector("[data-said]").textContent = text;
  }

  clear() {
    clear(this);
    this.say("");
  }

  problem(error) {
    show(this, error);
  }
}

function dataUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

customElements.define("omlx-try", Trial);
