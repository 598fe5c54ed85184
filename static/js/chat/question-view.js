// A question on the page, which can be edited: the edited one begins a branch.

import { fromTemplate, thumbnail } from "./dom.js";

export class QuestionView {
  constructor(message, conversation) {
    this.message = message;
    this.element = fromTemplate("question");
    this.element.dataset.id = message.id;
    this.text = this.element.querySelector("[data-text]");
    this.form = this.element.querySelector("form");
    this.text.textContent = message.text;
    this.text.hidden = !message.text;
    this.#draw(conversation);
  }

  update() {}

  get isEditing() {
    return !this.form.hidden;
  }

  edit() {
    this.#toggle(true);
    const field = this.form.elements.text;
    field.value = this.message.text;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  cancel() {
    this.#toggle(false);
    this.element.querySelector('[data-action="edit"]').focus();
  }

  remove() {
    this.element.remove();
  }

  #toggle(edits) {
    this.form.hidden = !edits;
    this.element.querySelector("[data-shown]").hidden = edits;
  }

  async #draw({ images }) {
    const place = this.element.querySelector("[data-images]");
    for (const { id, name } of this.message.images ?? []) {
      if (images.has(id)) place.append(await thumbnail(images.get(id), name));
    }
  }
}
