// The choice of a model: a button, and above it a list with a search, driven by keys or pointer
// (the combobox pattern of ARIA: the focus stays in the search).

import { t } from "../text.js";
import { sizeOf } from "./figures.js";

const GAP = 8; // pixels between the button, the panel and the window's edge

export class Picker {
  #active = 0;

  constructor(element, models) {
    this.models = models;
    this.button = element.querySelector("button");
    this.panel = element.querySelector("[popover]");
    this.search = element.querySelector("input");
    this.list = element.querySelector("[role=listbox]");
    this.none = element.querySelector("[data-none]");
    this.button.popoverTargetElement = this.panel;
    // `toggle` comes a moment later, perhaps after the first keys.
    this.panel.addEventListener("beforetoggle", ({ newState }) => {
      if (newState === "open") this.search.value = "";
    });
    this.panel.addEventListener("toggle", ({ newState }) => this.#toggled(newState === "open"));
    this.search.addEventListener("input", () => this.#offer());
    this.panel.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("click", ({ target }) => this.#take(target.closest("[role=option]")));
    models.addEventListener("facts", () => this.#name());
    models.addEventListener("facts", () => this.#isOpen && this.#offer());
    this.#name();
  }

  get #isOpen() {
    return this.panel.matches(":popover-open");
  }

  #name() {
    const { chosen } = this.models;
    this.button.querySelector("[data-chosen]").textContent = chosen || t("ui.chat.model");
    this.button.title = chosen;
  }

  #toggled(isOpen) {
    this.button.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    this.#place();
    this.#offer();
    this.search.focus();
    this.models.load();
  }

  // Above the button, inside the window.
  #place() {
    const { left, top } = this.button.getBoundingClientRect();
    const { style, offsetWidth } = this.panel;
    const last = document.documentElement.clientWidth - offsetWidth - GAP;
    style.insetInlineStart = `${Math.max(GAP, Math.min(left, last))}px`;
    style.insetBlockEnd = `${innerHeight - top + GAP}px`;
    style.maxBlockSize = `${top - 2 * GAP}px`;
  }

  #offer() {
    const found = this.models.matching(this.search.value);
    const chosen = this.models.chosen;
    this.list.replaceChildren(...found.map((model, number) => option(model, number, chosen)));
    this.none.hidden = found.length > 0;
    const at = found.findIndex(({ id }) => id === chosen);
    this.#activate(this.search.value ? 0 : Math.max(0, at));
  }

  #activate(number) {
    const options = [...this.list.children];
    this.#active = Math.max(0, Math.min(number, options.length - 1));
    options.forEach((element, at) => element.toggleAttribute("data-active", at === this.#active));
    const active = options[this.#active];
    if (!active) return this.search.removeAttribute("aria-activedescendant");
    this.search.setAttribute("aria-activedescendant", active.id);
    return active.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const last = this.list.childElementCount - 1;
    const moves = { ArrowDown: this.#active + 1, ArrowUp: this.#active - 1, PageDown: last };
    Object.assign(moves, { PageUp: 0 });
    if (event.key in moves) {
      event.preventDefault();
      this.#activate(moves[event.key]);
    }
    if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      this.#take(this.list.children[this.#active]);
    }
    if (event.key === "Escape") event.stopPropagation(); // closes this list, and nothing else
  }

  #take(element) {
    if (!element) return;
    this.panel.hidePopover();
    this.models.pick(element.dataset.model);
    this.button.focus();
  }
}

function option(model, number, chosen) {
  const { id, parent } = model;
  const element = document.createElement("li");
  element.id = `chat-model-${number}`;
  element.className = parent ? "picker-option picker-profile" : "picker-option";
  element.dataset.model = id;
  element.setAttribute("role", "option");
  element.setAttribute("aria-selected", String(id === chosen));
  const name = part("picker-name", parent ? id.slice(parent.length + 1) : id);
  element.append(name, part("picker-facts", factsOf(model).join(" · ")));
  return element;
}

function part(className, textContent) {
  return Object.assign(document.createElement("span"), { className, textContent });
}

const STATES = {
  ready: "ui.chat.model.loaded",
  loading: "ui.chat.model.loading",
  leaving: "ui.chat.model.leaving",
};

function factsOf(model) {
  const { state, fits, size_bytes: size, input_modalities: inputs, capabilities, parent } = model;
  const facts = [
    parent && t("ui.chat.model.profile", { model: parent }),
    model.profile?.system_prompt,
    state in STATES && t(STATES[state]),
    !parent && size > 0 && sizeOf(size),
    !fits && t("ui.chat.model.large"),
    inputs.includes("image") && t("ui.chat.model.images"),
    capabilities.includes("tools") && t("ui.chat.model.tools"),
    capabilities.includes("reasoning") && t("ui.chat.reasoning"),
    model.drafts_for_others && t("ui.chat.model.draft"),
  ];
  return facts.filter(Boolean);
}
