// The form in which the text of a question or an answer is edited, in place of what it shows.

export class EditForm {
  constructor(element) {
    this.form = element.querySelector("[data-edit]");
    this.shown = element.querySelector("[data-shown]");
    this.button = element.querySelector('[data-action="edit"]');
  }

  open(text) {
    this.#toggle(true);
    const field = this.form.elements.text;
    field.value = text;
    field.focus();
    field.setSelectionRange(text.length, text.length);
  }

  close() {
    this.#toggle(false);
    this.button.focus();
  }

  #toggle(edits) {
    this.form.hidden = !edits;
    this.shown.hidden = edits;
  }
}
