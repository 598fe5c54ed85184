// The page of API keys: a new one is shown until it is put away, and nowhere else; one is revoked
// after a question.

import { announce } from "./announce.js";
import { send } from "./api.js";
import { confirmed } from "./confirm.js";
import { clear, show } from "./form-problem.js";
import { t } from "./text.js";

class Keys extends HTMLElement {
  connectedCallback() {
    this.created = this.querySelector("[data-created]");
    this.form = this.querySelector("form[method=post]");
    this.form.addEventListener("submit", (event) => this.create(event));
    this.created.querySelector("[data-done]").addEventListener("click", () => this.putAway());
    this.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-revoke]");
      if (button) this.revoke(button);
    });
  }

  async create(event) {
    event.preventDefault();
    if (this.busy) return; // a second click would be refused for its name
    const first = this.querySelector("[data-open]"); // until now no program needed a key
    if (first && !(await confirmed("closes"))) return;
    this.busy = true;
    clear(this.form);
    try {
      const { body } = await send("POST", "/keys", wanted(this.form.elements));
      this.form.reset();
      this.show(body);
      changed();
    } catch (error) {
      show(this.form, error);
    }
    this.busy = false;
  }

  show({ name, key, unmatched }) {
    const heading = this.created.querySelector("h2");
    const note = this.created.querySelector("[data-unmatched]");
    heading.textContent = t("ui.keys.created_one", { name });
    this.created.querySelector("[data-copied]").textContent = key;
    note.textContent = unmatched.map((pattern) => t("keys.no_model", { pattern })).join(" ");
    note.hidden = !unmatched.length;
    this.created.hidden = false;
    heading.focus();
  }

  putAway() {
    this.created.hidden = true;
    this.created.querySelector("[data-copied]").textContent = "";
    this.querySelector("#keys").focus();
  }

  async revoke(button) {
    const { revoke: name, question } = button.dataset;
    const place = this.querySelector("[data-revoke-problem]");
    place.hidden = true;
    if (!(await confirmed("revoke", question))) return;
    try {
      await send("DELETE", `/keys/${encodeURIComponent(name)}`);
      announce(t("ui.keys.revoked", { name }));
      this.querySelector("#keys").focus();
    } catch (error) {
      place.textContent = error.message;
      place.hidden = false;
    }
    changed();
  }
}

function changed() {
  document.dispatchEvent(new CustomEvent("omlx:changed"));
}

// The body of a new key. A rate that is no number is sent as 0, which is refused with the bounds.
function wanted({ name, models, requests_per_minute: rate }) {
  const body = { name: name.value.trim() };
  const patterns = models.value.split(/[\s,]+/).filter(Boolean);
  if (patterns.length) body.models = patterns;
  const limit = Number(rate.value.trim());
  if (rate.value.trim()) body.requests_per_minute = Number.isInteger(limit) ? limit : 0;
  return body;
}

customElements.define("omlx-keys", Keys);
