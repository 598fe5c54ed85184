import { send } from "./api.js";

class Logout extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", () => this.leave());
  }

  async leave() {
    await send("POST", "/logout");
    location.assign(this.dataset.then);
  }
}

customElements.define("omlx-logout", Logout);
