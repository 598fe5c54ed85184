// Rows of the model name mapping: names that clients send, and the models that answer. The form sends
// the hidden list, one `PATTERN=MODEL` a line, which this keeps equal to the rows. A row that cannot be
// sent has its reason as custom validity; the form shows it when it is saved.

import { t } from "./text.js";

class ModelMap extends HTMLElement {
  connectedCallback() {
    this.list = this.querySelector("[data-rows]");
    this.field = this.querySelector("textarea");
    this.addEventListener("input", () => this.collect());
    this.addEventListener("click", this);
    this.field.form.addEventListener("reset", () => this.list.replaceChildren(...this.rendered));
    this.field.form.addEventListener("omlx:restored", () => this.start());
    this.start();
  }

  get rows() {
    return [...this.list.children];
  }

  // Begin with the rows that the server rendered.
  start() {
    this.rendered = this.rows;
    this.collect();
  }

  handleEvent({ target }) {
    const row = target.closest(".map-row");
    if (target.closest("[data-add]")) this.add();
    else if (target.closest("[data-remove]")) this.remove(row);
    else if (target.closest("[data-up]")) this.raise(row);
    else return;
    this.dispatchEvent(new Event("input", { bubbles: true }));
  }

  add() {
    this.list.append(this.querySelector("template").content.cloneNode(true));
    this.rows.at(-1).querySelector("[data-pattern]").focus();
  }

  // The focus goes to the row that takes its place, else to the button that adds one.
  remove(row) {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    (next?.querySelector("[data-pattern]") ?? this.querySelector("[data-add]")).focus();
    row.remove();
  }

  raise(row) {
    row.previousElementSibling.before(row);
    const up = row.querySelector("[data-up]");
    const first = row === this.list.firstElementChild;
    (first ? row.querySelector("[data-pattern]") : up).focus();
  }

  collect() {
    this.rows.forEach((row, index) => {
      check(row);
      name(row, index + 1);
    });
    this.field.value = this.rows.map(line).filter(Boolean).join("\n");
  }
}

function inputs(row) {
  return [row.querySelector("[data-pattern]"), row.querySelector("[data-target]")];
}

function line(row) {
  const [pattern, target] = inputs(row).map(({ value }) => value.trim());
  return pattern || target ? `${pattern}=${target}` : "";
}

function check(row) {
  const [pattern, target] = inputs(row);
  const isEmpty = ({ value }) => value.trim() === "";
  let problem = isEmpty(pattern) && !isEmpty(target) ? t("ui.map.no_pattern") : "";
  if (pattern.value.includes("=")) problem = t("ui.map.equals");
  pattern.setCustomValidity(problem);
  target.setCustomValidity(isEmpty(target) && !isEmpty(pattern) ? t("ui.map.no_target") : "");
}

// Name a row and its buttons for screen readers, and join its messages to its inputs.
function name(row, number) {
  row.setAttribute("aria-label", t("ui.map.row", { number }));
  const up = row.querySelector("[data-up]");
  if (up) {
    up.disabled = number === 1;
    up.setAttribute("aria-label", t("ui.map.row.up", { number }));
    const remove = row.querySelector("[data-remove]");
    remove.setAttribute("aria-label", t("ui.map.row.remove", { number }));
  }
  const messages = [...row.querySelectorAll("[data-problem], [data-warning]")];
  for (const message of messages) {
    const kind = "problem" in message.dataset ? "problem" : "warning";
    message.id = `map-${kind}-${number}`;
  }
  const ids = messages.map(({ id }) => id).join(" ");
  for (const input of inputs(row)) input.setAttribute("aria-describedby", ids);
}

customElements.define("omlx-model-map", ModelMap);
