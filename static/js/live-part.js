// A part of a page that is fetched again every few seconds while the page is visible; what differs
// is changed in place. With `data-incomplete` the page has only its beginning, and the whole is fetched
// as soon as the page is loaded. With `data-while`, a selector, it is fetched only while it has such an
// element, and after a change.

import { reach } from "./connection.js";
import { morph } from "./morph.js";
import { isLoggedOut, loggedOut } from "./session.js";

const UNCHANGED = 304;
const UNAUTHORIZED = 401;

class Live extends HTMLElement {
  connectedCallback() {
    this.tag = null;
    this.schedule();
    if ("incomplete" in this.dataset) afterLoad(this.refresh);
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
    const paused = "paused" in this.dataset;
    const due = document.visibilityState === "visible" && !isLoggedOut() && !paused;
    if (due) await this.fetchAgain().catch(() => {}); // there is a warning
    if (this.isConnected) this.schedule();
  };

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(this.onTime, 1000 * Number(this.dataset.every));
  }

  onTime = () => {
    const { while: selector } = this.dataset;
    if (selector && !this.querySelector(selector)) this.schedule();
    else this.refresh();
  };

  // A newer refresh may be answered first: only the newest answer counts.
  async fetchAgain() {
    const headers = this.tag ? { "If-None-Match": this.tag } : {};
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const { answer, body } = await reach(this.dataset.source, { headers });
    if (answer.status === UNAUTHORIZED) loggedOut();
    if (!answer.ok || answer.status === UNCHANGED || turn !== this.turn) return;
    this.tag = answer.headers.get("ETag");
    morph(this, body);
    this.dispatchEvent(new CustomEvent("omlx:refreshed", { bubbles: true }));
  }
}

function afterLoad(call) {
  if (document.readyState === "complete") call();
  else window.addEventListener("load", call, { once: true });
}

customElements.define("omlx-live", Live);
