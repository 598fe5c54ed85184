// The settings of the conversation: system prompt, sampling, reasoning, seed, JSON schema. An empty
// field leaves the value to the model.

import * as formProblem from "../form-problem.js";
import { t } from "../text.js";
import { DEFAULTS } from "./request.js";

const LAST = "omlx-chat-settings"; // of the newest conversation, for the next one
const MAX_SEED = 2 ** 53 - 1;

const NUMBERS = {
  temperature: { accepts: (value) => value >= 0 && value <= 100, range: "0–100" },
  maxTokens: { accepts: (value) => Number.isInteger(value) && value >= 1, range: "1–" },
  seed: {
    accepts: (value) => Number.isInteger(value) && value >= 0 && value <= MAX_SEED,
    range: `0–${MAX_SEED}`,
  },
};

// Dispatches `change` with every edit.
export class SettingsPanel extends EventTarget {
  constructor(form, models) {
    super();
    this.form = form;
    this.models = models;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      formProblem.clear(form);
      this.#edited();
    });
    models.select.addEventListener("change", () => this.#edited());
    models.select.addEventListener("omlx:models", () => this.#offer());
  }

  get values() {
    const { system, temperature, maxTokens, thinking, seed, schema } = this.form.elements;
    return {
      model: this.models.chosen,
      system: system.value,
      temperature: temperature.value.trim(),
      maxTokens: maxTokens.value.trim(),
      thinking: this.models.thinks ? thinking.value : "",
      seed: seed.value.trim(),
      schema: schema.value,
    };
  }

  show(settings) {
    for (const [name, value] of Object.entries({ ...DEFAULTS, ...settings })) {
      if (name in this.form.elements) this.form.elements[name].value = value;
    }
    this.models.choose(settings.model);
    formProblem.clear(this.form);
  }

  get isValid() {
    return problemOf(this.values) === null;
  }

  // Show the first value that cannot be sent, at its field.
  showProblem() {
    formProblem.show(this.form, problemOf(this.values));
  }

  static last() {
    try {
      return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(LAST)) };
    } catch {
      return { ...DEFAULTS };
    }
  }

  #edited() {
    try {
      localStorage.setItem(LAST, JSON.stringify(this.values));
    } catch {
      // the next conversation begins with the defaults
    }
    this.dispatchEvent(new Event("change"));
  }

  #offer() {
    this.form.querySelector("[data-field=thinking]").hidden = !this.models.thinks;
  }
}

function problemOf(values) {
  for (const [field, { accepts, range }] of Object.entries(NUMBERS)) {
    const number = Number(values[field]);
    const isBad = values[field] !== "" && !accepts(number);
    if (isBad) return { field, message: t("ui.chat.problem.number", { range }) };
  }
  if (!values.schema.trim()) return null;
  try {
    const schema = JSON.parse(values.schema);
    if (schema !== null && typeof schema === "object" && !Array.isArray(schema)) return null;
    return { field: "schema", message: t("ui.chat.problem.schema") };
  } catch (error) {
    return { field: "schema", message: t("ui.chat.problem.json", { reason: error.message }) };
  }
}
