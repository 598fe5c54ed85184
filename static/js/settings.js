// A form of settings: sends what was changed and nothing else, to the state that was read. What is refused is said
// beside its field, and what was typed stays. An empty field lets the next source decide.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { clear, show } from "./form-problem.js";
import { renew } from "./renew.js";
import { t } from "./text.js";

const OUTDATED = 412;

class Settings extends HTMLElement {
  connectedCallback() {
    this.setUp();
    this.addEventListener("input", () => this.note());
    this.addEventListener("submit", (event) => this.save(event));
    this.addEventListener("reset", () => setTimeout(() => this.restored()));
    this.addEventListener("click", (event) => event.target.closest("[data-reload]") && location.reload());
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
    this.note();
  }

  get controls() {
    return [...this.form.elements].filter((each) => each.name && each.dataset.kind);
  }

  // The settings of the form as they stand in it: name -> text.
  values() {
    const chosen = this.controls.filter((each) => each.type !== "radio" || each.checked);
    return new Map(chosen.map((each) => [each.name, this.textOf(each)]));
  }

  // The same as the server rendered it. Somebody may have typed before this script ran, or the browser filled it in.
  rendered() {
    const chosen = this.controls.filter((each) => each.type !== "radio" || each.defaultChecked);
    return new Map(chosen.map((each) => [each.name, renderedOf(each)]));
  }

  textOf(control) {
    const removed = this.querySelector(`[data-removes="${control.name}"]`)?.checked;
    return removed ? REMOVED : control.value;
  }

  changes() {
    const before = this.rendered();
    const now = [...this.values()].filter(([name, text]) => text !== before.get(name));
    return Object.fromEntries(now.map(([name, text]) => [name, parsed(this.control(name).dataset.kind, text)]));
  }

  control(name) {
    return this.form.querySelector(`[name="${CSS.escape(name)}"]`);
  }

  note() {
    this.bar.hidden = Object.keys(this.changes()).length === 0;
    this.querySelector("[data-saved]").replaceChildren();
  }

  restored() {
    clear(this.form);
    this.querySelector("[data-reload]").hidden = true;
    this.note();
    this.form.dispatchEvent(new CustomEvent("omlx:restored", { bubbles: true }));
  }

  async save(event) {
    event.preventDefault();
    clear(this.form);
    const changes = this.changes();
    if (Object.keys(changes).length === 0) return;
    const confirm = [...this.querySelectorAll("[data-confirms]:checked")].map((each) => each.dataset.confirms);
    try {
      const { path, revision } = this.dataset;
      const { body, etag } = await send("PATCH", path, { changes, confirm }, { etag: `"${revision}"` });
      document.dispatchEvent(new CustomEvent("omlx:saved", { detail: { path, etag } }));
      document.dispatchEvent(new CustomEvent("omlx:changed"));
      await this.refresh();
      this.tell(body.applied);
    } catch (error) {
      this.bar.hidden = false;
      show(this.form, error, this.bar);
      this.querySelector("[data-reload]").hidden = error.status !== OUTDATED;
    }
  }

  // Another form of this page, or this one, has saved: what it read is the state now.
  onSaved = ({ detail: { path, etag } }) => {
    if (path === this.dataset.path) this.dataset.revision = etag.replaceAll('"', "");
  };

  onLeave = (event) => {
    if (!this.bar.hidden) event.preventDefault();
  };

  // The page as the server now renders it, this form alone: what is in effect, and who set it.
  async refresh() {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector(`omlx-settings[data-form="${this.dataset.form ?? ""}"]`);
    if (!fresh) return location.reload();
    renew(this, () => this.replaceChildren(...fresh.childNodes));
    this.setUp();
  }

  // When each change counts: said once where it is the same for all.
  tell(applied) {
    const whens = [...new Set(Object.values(applied))];
    const lines = whens.map((when) => {
      const names = Object.keys(applied).filter((name) => applied[name] === when);
      return t(`ui.saved.${when}`, { names: names.map((name) => t(`settings.${name}.label`)).join(", ") });
    });
    const place = this.querySelector("[data-saved]");
    place.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
    announce(lines.join(" "));
  }
}

const REMOVED = "\u0000";

function renderedOf(control) {
  if (control instanceof HTMLSelectElement) {
    const options = [...control.options];
    return (options.find((each) => each.defaultSelected) ?? options[0]).value;
  }
  return control.type === "radio" ? control.value : control.defaultValue;
}

// Text as JSON of its kind. What does not read as one is sent as it stands, for the server to say what is wrong.
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
