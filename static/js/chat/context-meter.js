// How much of the model's context the conversation has used, as the newest answer has counted it.

import { t } from "../text.js";
import { show } from "./dom.js";
import { count } from "./figures.js";

const WARN_FROM = 0.9;

export class ContextMeter {
  constructor(element, warning, models) {
    this.element = element;
    this.warning = warning;
    this.models = models;
    models.select.addEventListener("omlx:models", () => this.show(this.turns ?? []));
  }

  show(turns) {
    this.turns = turns;
    const used = turns.findLast(({ usage }) => usage)?.usage.total_tokens;
    const length = this.models.facts?.context_length;
    const isKnown = used !== undefined && length !== undefined;
    this.element.hidden = !isKnown;
    const share = isKnown ? used / length : 0;
    show(this.warning, share >= WARN_FROM ? t("ui.chat.context.warning") : "");
    if (!isKnown) return;
    const meter = this.element.querySelector("meter");
    Object.assign(meter, { max: length, high: WARN_FROM * length, value: used });
    const figures = t("ui.chat.context", { used: count(used), length: count(length) });
    this.element.querySelector("[data-figures]").textContent = figures;
  }
}
