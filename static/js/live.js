// A part of a page that keeps up: fetched again every few seconds while somebody looks, and replaced where it differs.
// Focus stays on the element of the same id, and what was opened stays open.

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
    if (text !== this.last) this.replace(text);
    this.last = text;
  }

  replace(text) {
    const focused = this.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...this.querySelectorAll("details[open][id]")].map((each) => each.id);
    this.innerHTML = text;
    for (const id of open) this.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    if (focused) this.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
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
