// A form of settings: sends only changed fields, with the revision that the page was made from.
// A refusal is shown beside its field, and the input stays. An empty field leaves it to the
// next source to decide.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { clear, show } from "./form-problem.js";
import { replaceContent } from "./replace-content.js";
import { t } from "./text.js";

const OUTDATED = 412;

class Settings extends HTMLElement {
  connectedCallback() {
    this.setUp();
    this.addEventListener("input", () => this.showBar());
    this.addEventListener("submit", (event) => this.save(event));
    this.addEventListener("reset", () => setTimeout(() => this.restored()));
    this.addEventListener("click", (event) => {
      if (event.target.closest("[data-reload]")) location.reload();
    });
    document.addEventListener("omlx:saved", this.onSaved);
    window.addEventListener("beforeunload", this.onLeave);
  }

  disconnectedCallback() {
    document.removeEventListener("omlx:saved", this.onSaved);
    window.removeEventListener("beforeunload", this.onLeave);
  }

  setUp() {
    this.form = this.querySelector("form");
    this.bar = this.querySelector("[data-savebar]");
    this.showBar();
  }

  get controls() {
    return [...this.form.elements].filter((control) => control.name && control.dataset.kind);
  }

  // The current input: name -> text.
  values() {
    const chosen = this.controls.filter((control) => control.type !== "radio" || control.checked);
    return new Map(chosen.map((control) => [control.name, this.textOf(control)]));
  }

  // The values that the server rendered. The input may differ from the start: typed before this
  // script ran, or filled in by the browser.
  rendered() {
    const isChosen = (control) => control.type !== "radio" || control.defaultChecked;
    const chosen = this.controls.filter(isChosen);
    return new Map(chosen.map((control) => [control.name, renderedOf(control)]));
  }

  textOf(control) {
    const removed = this.querySelector(`[data-removes="${control.name}"]`)?.checked;
    return removed ? REMOVED : control.value;
  }

  changes() {
    const before = this.rendered();
    const now = [...this.values()].filter(([name, text]) => text !== before.get(name));
    const kind = (name) => this.control(name).dataset.kind;
    return Object.fromEntries(now.map(([name, text]) => [name, parsed(kind(name), text)]));
  }

  control(name) {
    return this.form.querySelector(`[name="${CSS.escape(name)}"]`);
  }

  showBar() {
    this.bar.hidden = Object.keys(this.changes()).length === 0;
    this.querySelector("[data-saved]").replaceChildren();
  }

  restored() {
    clear(this.form);
    this.querySelector("[data-reload]").hidden = true;
    this.showBar();
    this.form.dispatchEvent(new CustomEvent("omlx:restored", { bubbles: true }));
  }

  async save(event) {
    event.preventDefault();
    clear(this.form);
    const changes = this.changes();
    if (Object.keys(changes).length === 0) return;
    const boxes = [...this.querySelectorAll("[data-confirms]:checked")];
    const content = { changes, confirm: boxes.map((box) => box.dataset.confirms) };
    try {
      const { path, revision } = this.dataset;
      const { body, etag } = await send("PATCH", path, content, { etag: `"${revision}"` });
      document.dispatchEvent(new CustomEvent("omlx:saved", { detail: { path, etag } }));
      document.dispatchEvent(new CustomEvent("omlx:changed"));
      await this.refresh();
      this.showApplied(body.applied);
    } catch (error) {
      this.bar.hidden = false;
      show(this.form, error, this.bar);
      this.querySelector("[data-reload]").hidden = error.status !== OUTDATED;
    }
  }

  // A form of this page has saved the same settings: take over the new revision.
  onSaved = ({ detail: { path, etag } }) => {
    if (path === this.dataset.path) this.dataset.revision = etag.replaceAll('"', "");
  };

  onLeave = (event) => {
    if (!this.bar.hidden) event.preventDefault();
  };

  // Replace this form by the one in the page as the server renders it now.
  async refresh() {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector(`omlx-settings[data-form="${this.dataset.form ?? ""}"]`);
    if (!fresh) return location.reload();
    replaceContent(this, () => this.replaceChildren(...fresh.childNodes));
    this.setUp();
  }

  // Say when each change takes effect, once for all changes with the same time.
  showApplied(applied) {
    const whens = [...new Set(Object.values(applied))];
    const lines = whens.map((when) => {
      const names = Object.keys(applied).filter((name) => applied[name] === when);
      const labels = names.map((name) => t(`settings.${name}.label`));
      return t(`ui.saved.${when}`, { names: labels.join(", ") });
    });
    const place = this.querySelector("[data-saved]");
    place.replaceChildren(...lines.map(paragraph));
    announce(lines.join(" "));
  }
}

const REMOVED = "\u0000";

function paragraph(text) {
  return Object.assign(document.createElement("p"), { textContent: text });
}

function renderedOf(control) {
  if (control instanceof HTMLSelectElement) {
    const options = [...control.options];
    return (options.find((option) => option.defaultSelected) ?? options[0]).value;
  }
  return control.type === "radio" ? control.value : control.defaultValue;
}

// Convert a text to JSON of its kind. An invalid text is sent as it is; the server reports the
// error.
function parsed(kind, text) {
  if (text === REMOVED || text.trim() === "") return null;
  switch (kind) {
    case "switch":
      return text === "true";
    case "number":
      return Number.isNaN(Number(text)) ? text : Number(text);
    case "lines":
      return text.split("\n").map((line) => line.trim()).filter(Boolean);
    case "object":
      return object(text);
    default:
      return text;
  }
}

function object(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

customElements.define("omlx-settings", Settings);
