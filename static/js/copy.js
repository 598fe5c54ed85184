// A text with a button that copies it; no button without access to the clipboard.

import { announce } from "./announce.js";
import { t } from "./text.js";

const SHOWN_MS = 2000;

class Copy extends HTMLElement {
  connectedCallback() {
    if (!navigator.clipboard) return;
    this.button = this.querySelector("button");
    this.button.hidden = false;
    this.button.addEventListener("click", () => this.copy());
  }

  async copy() {
    await navigator.clipboard.writeText(this.querySelector("[data-copied]").textContent);
    announce(t("ui.copied"));
    this.classList.add("copy-done");
    setTimeout(() => this.classList.remove("copy-done"), SHOWN_MS);
  }
}

customElements.define("omlx-copy", Copy);
