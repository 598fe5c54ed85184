// A part of a page that is fetched again every few seconds while the page is visible, and replaced
// if it differs.

import { replaceContent } from "./replace-content.js";

class Live extends HTMLElement {
  connectedCallback() {
    this.last = null;
    this.schedule();
    document.addEventListener("visibilitychange", this.onVisible);
    document.addEventListener("omlx:changed", this.refresh);
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisible);
    document.removeEventListener("omlx:changed", this.refresh);
  }

  onVisible = () => {
    if (document.visibilityState === "visible") this.refresh();
  };

  refresh = async () => {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") await this.fetchAgain().then(online, offline);
    if (this.isConnected) this.schedule();
  };

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.refresh, 1000 * Number(this.dataset.every));
  }

  async fetchAgain() {
    const answer = await fetch(this.dataset.source);
    if (answer.redirected) location.reload(); // without a session the page leads to the login
    if (!answer.ok) return;
    const text = await answer.text();
    if (text !== this.last) replaceContent(this, () => (this.innerHTML = text));
    this.last = text;
  }
}

// Warn that the page may be out of date while the server does not answer.
function offline() {
  document.querySelector("[data-offline]").hidden = false;
}

function online() {
  document.querySelector("[data-offline]").hidden = true;
}

customElements.define("omlx-live", Live);
