// A link that completes the live part around it in place. The focus goes to the first thing that is new.

class More extends HTMLElement {
  connectedCallback() {
    this.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link) return;
      event.preventDefault();
      this.complete(link);
    });
  }

  async complete({ dataset: { part } }) {
    const live = this.closest("omlx-live");
    const known = new Set(live.children);
    live.dataset.source = part;
    await live.refresh();
    const added = [...live.children].find((child) => !known.has(child));
    added?.querySelector("input")?.focus();
  }
}

customElements.define("omlx-more", More);
