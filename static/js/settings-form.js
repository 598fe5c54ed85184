// A form of settings: sends only changed fields, with the revision that the page was made from.
// A refusal is shown beside its field, and the input stays. An empty field leaves it to the
// next source to decide.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { clear, show, showInvalid } from "./form-problem.js";
import { morph } from "./morph.js";
import { t } from "./text.js";

const OUTDATED = 412;
const SHOWN_MS = 10_000;

class Settings extends HTMLElement {
  connectedCallback() {
    this.setUp();
    document.addEventListener("input", this.onInput);
    this.addEventListener("submit", (event) => this.save(event));
    this.addEventListener("reset", () => setTimeout(() => this.restored()));
    this.addEventListener("click", (event) => {
      if (event.target.closest("[data-reload]")) location.reload();
    });
    this.addEventListener("focusout", () => this.hideSoon());
    document.addEventListener("omlx:saved", this.onSaved);
    window.addEventListener("beforeunload", this.onLeave);
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
    document.removeEventListener("input", this.onInput);
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

  get isChanged() {
    return Object.keys(this.changes()).length > 0;
  }

  showBar() {
    this.bar.hidden = !this.isChanged;
    this.bar.toggleAttribute("data-done", false);
    this.bar.querySelector("[data-saved]").replaceChildren();
  }

  restored() {
    clear(this.form);
    this.querySelector("[data-reload]").hidden = true;
    this.showBar();
    this.form.dispatchEvent(new CustomEvent("omlx:restored", { bubbles: true }));
  }

  async save(event) {
    event.preventDefault();
    if (showInvalid(this.form)) return;
    const changes = this.changes();
    if (Object.keys(changes).length === 0) return;
    const boxes = [...this.querySelectorAll("[data-confirms]:checked")];
    const content = { changes, confirm: boxes.map((box) => box.dataset.confirms) };
    const focused = document.activeElement;
    try {
      const { path, revision } = this.dataset;
      const { body, etag } = await send("PATCH", path, content, { etag: `"${revision}"` });
      document.dispatchEvent(new CustomEvent("omlx:saved", { detail: { path, etag } }));
      document.dispatchEvent(new CustomEvent("omlx:changed"));
      await this.refresh();
      this.showApplied(body);
      if (this.contains(focused)) focused.focus({ preventScroll: true });
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

  // Input in another form takes away the message of this one; so does taking back every change.
  onInput = () => {
    this.showBar();
    if (this.bar.hidden) clear(this.form);
  };

  onLeave = (event) => {
    if (this.isChanged) event.preventDefault();
  };

  // Make this form equal to the one in the page as the server renders it now. Focus stays.
  async refresh() {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector(`omlx-settings[data-form="${this.dataset.form ?? ""}"]`);
    if (!fresh) return location.reload();
    this.dataset.revision = fresh.dataset.revision;
    morph(this, fresh.innerHTML);
    for (const control of this.form.elements) renew(control);
    this.setUp();
    this.form.dispatchEvent(new CustomEvent("omlx:restored", { bubbles: true }));
  }

  // Say when each change takes effect, once for all changes with the same time, and which values
  // have a warning. The bar stays where Save was pressed, with the focus.
  showApplied({ applied, settings }) {
    const whens = [...new Set(Object.values(applied))];
    const lines = whens.map((when) => {
      const names = Object.keys(applied).filter((name) => applied[name] === when);
      const labels = names.map((name) => t(`settings.${name}.label`));
      return t(`ui.saved.${when}`, { names: labels.join(", ") });
    });
    const doubtful = Object.keys(applied).filter((name) => settings[name]?.warning);
    const names = doubtful.map((name) => t(`settings.${name}.label`)).join(", ");
    if (names) lines.push(t("ui.saved.check", { names }));
    this.bar.querySelector("[data-saved]").replaceChildren(...lines.map(paragraph));
    this.bar.hidden = false;
    this.bar.toggleAttribute("data-done", true);
    announce(lines.join(" "));
    this.hideSoon();
  }

  // Hide the message after a while, unless the focus is still on the bar.
  hideSoon() {
    clearTimeout(this.timer);
    if (!this.bar.hasAttribute("data-done")) return;
    this.timer = setTimeout(() => {
      if (!this.bar.contains(document.activeElement)) this.showBar();
    }, SHOWN_MS);
  }
}

const REMOVED = "\u0000";

function paragraph(text) {
  return Object.assign(document.createElement("p"), { textContent: text });
}

// Show the value that the server rendered, in place of what was typed.
function renew(control) {
  if (control instanceof HTMLSelectElement) control.value = renderedOf(control);
  else if (["radio", "checkbox"].includes(control.type)) control.checked = control.defaultChecked;
  else if ("defaultValue" in control) control.value = control.defaultValue;
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
