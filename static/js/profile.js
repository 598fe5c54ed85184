// The button that deletes a profile; its settings are a form like others.

import { send } from "./api.js";
import { confirmed } from "./confirm.js";

class Profile extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      if (event.target.closest("[data-delete]")) this.delete();
    });
  }

  async delete() {
    const problem = this.querySelector("[data-delete-problem]");
    problem.hidden = true;
    if (!(await confirmed("delete"))) return;
    try {
      await send("DELETE", this.dataset.path);
      location.assign(this.dataset.then);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }
}

customElements.define("omlx-profile", Profile);
