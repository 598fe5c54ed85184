// The field for a question, with pictures, and the button that sends it or stops the answer.

import { announce } from "../announce.js";
import { t } from "../text.js";
import { show, thumbnail } from "./dom.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MOST_BYTES = 20 * 2 ** 20; // of one picture; the server has the same limit
const MOST = 32;

// Dispatches `ask` with { text, pictures }, `stop`, and `typed` with the text whenever it changes.
// A question that is sent while an answer is generated waits for its end.
export class Composer extends EventTarget {
  pictures = [];
  #waits = false;

  constructor(form, models) {
    super();
    this.form = form;
    this.models = models;
    this.field = form.elements.question;
    this.problem = form.querySelector("[data-problem]");
    this.note = form.querySelector("[data-waits]");
    this.thumbnails = form.querySelector("[data-pictures]");
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
    form.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    form.addEventListener("dragover", (event) => event.preventDefault());
    models.select.addEventListener("omlx:models", () => this.#sight());
    models.select.addEventListener("change", () => this.#sight());
  }

  // While an answer is generated, its button stops it.
  set isBusy(busy) {
    this.form.querySelector('[data-action="send"]').hidden = busy;
    this.form.querySelector('[data-action="stop"]').hidden = !busy;
    this.busy = busy;
  }

  clear() {
    this.fill({ text: "", pictures: [] });
  }

  fill({ text, pictures }) {
    this.field.value = text;
    this.pictures = [...pictures];
    show(this.problem, "");
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
    const { pictures } = this;
    if (!(text || pictures.length)) return;
    if (this.busy) return this.#wait(true);
    show(this.problem, "");
    this.dispatchEvent(new CustomEvent("ask", { detail: { text, pictures } }));
  }

  attach(files) {
    const images = files.filter(({ type }) => TYPES.includes(type));
    const small = images.filter(({ size }) => size <= MOST_BYTES);
    const room = MOST - this.pictures.length;
    let problem = "";
    if (images.length < files.length) problem = t("ui.chat.image.format");
    if (small.length < images.length) problem = t("ui.chat.image.size");
    if (small.length > room) problem = t("ui.chat.image.many", { most: MOST });
    if (!this.models.sees) problem = t("ui.chat.image.blind", { model: this.models.chosen });
    show(this.problem, problem);
    if (!this.models.sees) return;
    this.pictures.push(...small.slice(0, room).map((blob) => ({ name: blob.name, blob })));
    this.#draw();
    this.#typed();
  }

  #click(button) {
    if (!button) return;
    const { action } = button.dataset;
    if (action === "attach") this.form.elements.file.click();
    if (action === "stop") this.stop();
    if (action === "detach") {
      this.pictures.splice(Number(button.dataset.number), 1);
      this.#draw();
      this.#typed();
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
    const shown = this.pictures.map(async ({ name, blob }, number) => {
      const item = document.createElement("li");
      const remove = document.createElement("button");
      Object.assign(remove, { type: "button", textContent: "×", className: "detach" });
      Object.assign(remove.dataset, { action: "detach", number });
      remove.setAttribute("aria-label", t("ui.chat.image.remove", { name }));
      item.append(await thumbnail(blob, name), remove);
      return item;
    });
    this.thumbnails.replaceChildren(...(await Promise.all(shown)));
    this.thumbnails.hidden = !this.pictures.length;
    if (this.pictures.length) announce(t("ui.chat.image.count", { count: this.pictures.length }));
  }

  // Whether the chosen model reads images.
  #sight() {
    const button = this.form.querySelector('[data-action="attach"]');
    button.disabled = !this.models.sees;
    const blind = t("ui.chat.image.blind", { model: this.models.chosen });
    button.title = this.models.sees ? t("ui.chat.attach") : blind;
  }

  // Browsers without `field-sizing` need the height set by lines.
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.field.rows = Math.min(12, this.field.value.split("\n").length);
  }
}
