// Logging in: with what the form holds, a link's token or a password.

import { send } from "./api.js";
import { clear, show } from "./form-problem.js";

class Login extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form");
    this.form.addEventListener("submit", (event) => this.enter(event));
  }

  async enter(event) {
    event.preventDefault();
    clear(this.form);
    try {
      const { body } = await send("POST", "/login", Object.fromEntries(new FormData(this.form)));
      location.replace(body.password_set ? this.dataset.then : this.toPassword());
    } catch (error) {
      show(this.form, error);
    }
  }

  // Whoever came by the first link is offered to set a password, and goes on from there.
  toPassword() {
    return `${this.dataset.password}?next=${encodeURIComponent(this.dataset.then)}`;
  }
}

customElements.define("omlx-login", Login);
