// Submit the form when a language is chosen.

class Language extends HTMLElement {
  connectedCallback() {
    this.addEventListener("change", () => this.closest("form").requestSubmit());
  }
}

customElements.define("omlx-language", Language);
