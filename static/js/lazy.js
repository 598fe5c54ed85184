// A part of a page inside closed details: fetched when they are opened. Until then it is a link.

class Lazy extends HTMLElement {
  connectedCallback() {
    const details = this.closest("details");
    const load = () => details.open && this.load();
    details.addEventListener("toggle", load, { once: true });
    if (details.open) this.load();
  }

  async load() {
    const answer = await fetch(this.querySelector("a").href);
    if (answer.ok) this.innerHTML = await answer.text();
  }
}

customElements.define("omlx-lazy", Lazy);
