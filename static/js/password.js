// Setting or changing the password; then on to the page that was wanted.

import { send } from "./api.js";
import { clear, show } from "./form-problem.js";

class Password extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.form.addEventListener("submit", (event) => this.change(event));
  }

  async change(event) {
    event.preventDefault();
    clear(this.form);
    try {
      await send("PUT", "/password", Object.fromEntries(new FormData(this.form)));
      location.assign(this.dataset.then);
    } catch (error) {
      show(this.form, error);
    }
  }
}

customElements.define("omlx-password", Password);
