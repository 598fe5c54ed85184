// The field for a question, with files, and the button that sends it or stops the answer.

import { announce } from "../announce.js";
import { t } from "../text.js";
import { attachment, chip, MOST, Unusable } from "./attachments.js";
import { show, thumbnail } from "./dom.js";
import { count } from "./figures.js";

// Dispatches `ask` with { text, files }, `stop`, and `typed` with the text whenever text or files
// change. A question that is sent while an answer is generated waits for its end.
export class Composer extends EventTarget {
  files = [];
  reading = []; // names of files that are being read
  #waits = false;

  constructor(form, models) {
    super();
    this.form = form;
    this.models = models;
    this.field = form.elements.question;
    this.problem = form.querySelector("[data-problem]");
    this.note = form.querySelector("[data-waits]");
    this.shown = form.querySelector("[data-files]");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    form.addEventListener("click", ({ target }) => this.#click(target.closest("[data-action]")));
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.field.addEventListener("input", () => this.#typed());
    form.elements.file.addEventListener("change", ({ target }) => {
      this.attach([...target.files]);
      target.value = "";
    });
    this.field.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    // Anywhere on the page: beside the field, the browser would leave the chat for the file.
    document.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    document.addEventListener("dragover", (event) => event.preventDefault());
    models.addEventListener("facts", () => this.#weigh());
  }

  // While an answer is generated, its button stops it.
  set isBusy(busy) {
    this.form.querySelector('[data-action="send"]').hidden = busy;
    this.form.querySelector('[data-action="stop"]').hidden = !busy;
    this.busy = busy;
  }

  clear() {
    this.fill({ text: "" });
  }

  fill({ text, files = [] }) {
    this.field.value = text;
    this.files = [...files];
    this.fail("");
    this.#draw();
    this.#typed();
  }

  // The answer has ended: send the question that waits, if it is `done`.
  free(isDone) {
    if (!this.#waits) return;
    this.#wait(false);
    if (isDone) this.send();
  }

  focus() {
    this.field.focus();
  }

  send() {
    const text = this.field.value.trim();
    if (!(text || this.files.length || this.reading.length)) return;
    if (this.busy) return this.#wait(true);
    if (this.reading.length) return this.fail(t("ui.chat.file.wait"));
    const { files } = this;
    this.fail("");
    this.dispatchEvent(new CustomEvent("ask", { detail: { text, files } }));
  }

  // Show why nothing was sent or attached.
  fail(sentence) {
    show(this.problem, sentence);
  }

  async attach(given) {
    const room = Math.max(0, MOST - this.files.length - this.reading.length);
    const problems = given.length > room ? [t("ui.chat.file.many", { most: MOST })] : [];
    const taken = given.slice(0, room);
    this.reading.push(...taken.map(({ name }) => name));
    this.#draw();
    for (const file of taken) {
      try {
        this.files.push(await attachment(file, this.models));
      } catch (error) {
        if (!(error instanceof Unusable)) console.error(error);
        problems.push(error.message);
      }
      this.reading.splice(this.reading.indexOf(file.name), 1);
    }
    this.#draw();
    this.#typed();
    this.#weigh();
    if (problems.length) this.fail(problems.join(" "));
  }

  #click(button) {
    if (!button) return;
    const { action } = button.dataset;
    if (action === "attach") this.form.elements.file.click();
    if (action === "stop") this.stop();
    if (action === "detach") {
      this.files.splice(Number(button.dataset.number), 1);
      this.#draw();
      this.#typed();
      this.#weigh();
      this.focus();
    }
  }

  stop() {
    this.dispatchEvent(new Event("stop"));
    this.focus();
  }

  #wait(waits) {
    this.#waits = waits;
    show(this.note, waits ? t("ui.chat.waits") : "");
  }

  #typed() {
    this.#wait(false);
    this.#fit();
    this.dispatchEvent(new CustomEvent("typed", { detail: this.field.value }));
  }

  // Enter sends, but not while an input method composes a word, nor on a phone, whose keyboard has
  // no other way to a new line.
  #key(event) {
    const isPhone = matchMedia("(pointer: coarse)").matches;
    const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing && !isPhone;
    if (!sends) return;
    event.preventDefault();
    this.send();
  }

  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    this.attach(files);
  }

  async #draw() {
    const drawing = Symbol("draw");
    this.drawing = drawing;
    const items = await Promise.all(this.files.map((file, number) => fileItem(file, number)));
    if (this.drawing !== drawing) return; // a newer one has begun
    this.shown.replaceChildren(...items, ...this.reading.map(waitingItem));
    this.shown.hidden = !this.shown.childElementCount;
    if (items.length) announce(t("ui.chat.file.count", { count: items.length }));
  }

  // Say whether the chosen model can read the files: there may be too much text, or pictures.
  #weigh() {
    const { models, files } = this;
    const tokens = files.reduce((sum, file) => sum + (file.tokens ?? 0), 0);
    const limit = models.facts?.context_length ?? Infinity;
    const facts = { tokens: count(tokens), model: models.chosen, limit: count(limit) };
    const shows = files.some(({ blob }) => blob.type !== "text/plain");
    let problem = tokens > limit ? t("ui.chat.file.long", facts) : "";
    if (shows && models.blindness) problem = models.blindness;
    if (problem || this.weighed) this.fail(problem);
    this.weighed = problem;
  }

  // Browsers without `field-sizing` need the height set by lines.
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.field.rows = Math.min(12, this.field.value.split("\n").length);
  }
}

async function fileItem(file, number) {
  const { name, blob } = file;
  const remove = document.createElement("button");
  Object.assign(remove, { type: "button", textContent: "×", className: "detach" });
  Object.assign(remove.dataset, { action: "detach", number });
  remove.setAttribute("aria-label", t("ui.chat.file.remove", { name }));
  const item = document.createElement("li");
  item.append("bytes" in file ? chip(file) : await thumbnail(blob, name), remove);
  return item;
}

function waitingItem(name) {
  const textContent = t("ui.chat.file.reading", { name });
  return Object.assign(document.createElement("li"), { className: "file-chip", textContent });
}
