// The settings of the conversation: system prompt, sampling, reasoning, seed, JSON schema. An empty
// field leaves the value to the model.

import * as formProblem from "../form-problem.js";
import { t } from "../text.js";
import { DEFAULTS, SAMPLING } from "./request.js";

const LAST = "omlx-chat-settings"; // of the newest conversation, for the next one
const MAX_SEED = 2 ** 53 - 1;

const between = (low, high) => ({
  accepts: (value) => value >= low && value <= high,
  range: `${low}–${high}`,
});

const NUMBERS = {
  temperature: between(0, 100),
  top_p: between(0, 1),
  top_k: { accepts: (value) => Number.isInteger(value) && value >= 0, range: "0–" },
  min_p: between(0, 1),
  xtc_probability: between(0, 1),
  xtc_threshold: between(0, 1),
  repetition_penalty: between(0.01, 10),
  presence_penalty: between(-2, 2),
  frequency_penalty: between(-2, 2),
  maxTokens: { accepts: (value) => Number.isInteger(value) && value >= 1, range: "1–" },
  seed: {
    accepts: (value) => Number.isInteger(value) && value >= 0 && value <= MAX_SEED,
    range: `0–${MAX_SEED}`,
  },
};

// Fields, and the settings by which a profile fills them.
const OF_PROFILE = { system: "system_prompt", maxTokens: "max_tokens" };
for (const name of SAMPLING) OF_PROFILE[name] = name;

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
    models.addEventListener("change", () => this.#edited());
    models.addEventListener("facts", () => this.#offer());
  }

  get values() {
    const { elements } = this.form;
    const numbers = Object.keys(NUMBERS).map((name) => [name, elements[name].value.trim()]);
    return {
      model: this.models.chosen,
      system: elements.system.value,
      ...Object.fromEntries(numbers),
      thinking: this.models.thinks ? elements.thinking.value : "",
      schema: elements.schema.value,
      tools: this.#tools.filter(({ checked }) => checked).map(({ value }) => value).join(","),
    };
  }

  show(settings) {
    const { elements } = this.form;
    for (const [name, value] of Object.entries({ ...DEFAULTS, ...settings })) {
      if (name !== "tools" && name in elements) elements[name].value = value;
    }
    const used = settings.tools?.split(",") ?? [];
    for (const box of this.#tools) box.checked = used.includes(box.value);
    this.models.choose(settings.model);
    formProblem.clear(this.form);
  }

  get #tools() {
    return [...this.form.querySelectorAll("[name=tools]")];
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

  // An empty field says what a profile puts there.
  #offer() {
    const { elements } = this.form;
    this.form.querySelector("[data-field=thinking]").hidden = !this.models.thinks;
    const values = this.models.facts?.profile ?? {};
    for (const [field, setting] of Object.entries(OF_PROFILE)) {
      elements[field].placeholder = String(values[setting] ?? t("ui.chat.by_model"));
    }
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
