// Choosing a language sends the form: the page comes back in it.

class Language extends HTMLElement {
  connectedCallback() {
    this.addEventListener("change", () => this.closest("form").requestSubmit());
  }
}

customElements.define("omlx-language", Language);
