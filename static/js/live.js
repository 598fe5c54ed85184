// A part of a page that keeps up: fetched again every few seconds while somebody looks, and replaced where it differs.

import { renew } from "./renew.js";

class Live extends HTMLElement {
  connectedCallback() {
    this.last = null;
    this.schedule();
    document.addEventListener("visibilitychange", this.onVisible);
    document.addEventListener("omlx:changed", this.look);
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisible);
    document.removeEventListener("omlx:changed", this.look);
  }

  onVisible = () => {
    if (document.visibilityState === "visible") this.look();
  };

  look = async () => {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") await this.fetchAgain().then(online, offline);
    if (this.isConnected) this.schedule();
  };

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.look, 1000 * Number(this.dataset.every));
  }

  async fetchAgain() {
    const answer = await fetch(this.dataset.source);
    if (answer.redirected) location.reload(); // the session has ended: the page itself leads to the login
    if (!answer.ok) return;
    const text = await answer.text();
    if (text !== this.last) renew(this, () => (this.innerHTML = text));
    this.last = text;
  }
}

// What stands in the page may be old: say so, for as long as nobody answers.
function offline() {
  document.querySelector("[data-offline]").hidden = false;
}

function online() {
  document.querySelector("[data-offline]").hidden = true;
}

customElements.define("omlx-live", Live);
