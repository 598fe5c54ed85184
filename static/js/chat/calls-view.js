// The calls of tools in an answer: what is called, with what, the user's decision, the result.

import { announce } from "../announce.js";
import { t } from "../text.js";
import { fromTemplate, show } from "./dom.js";

const STATES = {
  asked: "ui.chat.call.asked",
  running: "ui.chat.call.running",
  done: "ui.chat.call.done",
  refused: "ui.chat.call.refused",
};

export class CallsView {
  #shown = new Map(); // by id of the call

  constructor(place) {
    this.place = place;
  }

  show(calls = []) {
    this.place.hidden = !calls.length;
    for (const call of calls) {
      if (!this.#shown.has(call.id)) this.#shown.set(call.id, this.#add(call));
      const { element, status } = this.#shown.get(call.id);
      if (status === call.status) continue;
      draw(element, call);
      this.#shown.set(call.id, { element, status: call.status });
    }
  }

  #add({ id, name, arguments: given }) {
    const element = fromTemplate("call");
    element.dataset.call = id;
    element.setAttribute("aria-label", t("ui.chat.call", { name }));
    element.querySelector("[data-name]").textContent = name;
    element.querySelector("[data-arguments]").textContent = indented(given);
    this.place.append(element);
    return { element };
  }
}

function draw(element, { name, status, result, failed }) {
  const asks = status === "asked";
  const state = failed ? "ui.chat.call.failed" : STATES[status];
  element.querySelector("[data-state]").textContent = t(state);
  element.querySelector("[data-decide]").hidden = !asks;
  element.querySelector("details").open = asks;
  show(element.querySelector("[data-result]"), result);
  if (asks) announce(t("ui.chat.call.question", { name }));
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}
