// A question on the page, which can be edited: the edited one begins a branch.

import { chip } from "./attachments.js";
import { fromTemplate, thumbnail } from "./dom.js";
import { EditForm } from "./edit-form.js";

export class QuestionView {
  constructor(message, conversation) {
    this.message = message;
    this.element = fromTemplate("question");
    this.element.dataset.id = message.id;
    this.text = this.element.querySelector("[data-text]");
    this.form = new EditForm(this.element);
    this.text.textContent = message.text;
    this.text.hidden = !message.text;
    this.#draw(conversation);
  }

  update() {}

  edit() {
    this.form.open(this.message.text);
  }

  cancel() {
    this.form.close();
  }

  remove() {
    this.element.remove();
  }

  async #draw({ images }) {
    const place = this.element.querySelector("[data-images]");
    for (const file of this.message.images ?? []) {
      if (file.bytes !== undefined) place.append(chip(file));
      else if (images.has(file.id)) place.append(await thumbnail(images.get(file.id), file.name));
    }
  }
}
