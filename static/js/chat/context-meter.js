// How much of the model's context the conversation takes with what is typed.

import { t } from "../text.js";
import { show } from "./dom.js";
import { count } from "./figures.js";
import { tokensOf } from "./token-estimate.js";

const WARN_FROM = 0.9;
const SHOWN_FROM = 0.05; // of the context, for a question before the first answer

export class ContextMeter {
  turns = [];
  typed = "";

  constructor(element, warning, models) {
    this.element = element;
    this.warning = warning;
    this.models = models;
    models.addEventListener("facts", () => this.#draw());
  }

  show(turns) {
    this.turns = turns;
    this.#draw();
  }

  type(text) {
    this.typed = text;
    this.#draw();
  }

  #draw() {
    const length = this.models.facts?.context_length ?? Infinity;
    const { tokens, isExact } = tokensOf(this.turns, this.typed);
    const share = tokens / length;
    const isCounted = this.turns.some(({ usage }) => usage);
    this.element.hidden = !(share > (isCounted ? 0 : SHOWN_FROM));
    this.element.classList.toggle("context-over", share > 1);
    const params = { used: count(tokens), length: count(length) };
    show(this.warning, share > 1 ? t("ui.chat.context.over", params) : warningOf(share));
    if (this.element.hidden) return;
    const meter = this.element.querySelector("meter");
    Object.assign(meter, { max: length, high: WARN_FROM * length, value: tokens });
    const figures = t(isExact ? "ui.chat.context" : "ui.chat.context.about", params);
    this.element.querySelector("[data-figures]").textContent = figures;
  }
}

function warningOf(share) {
  return share >= WARN_FROM ? t("ui.chat.context.warning") : "";
}
