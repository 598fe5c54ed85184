// A button that stops the updates of a live part, and continues them.

class Pause extends HTMLElement {
  connectedCallback() {
    this.querySelector("button").addEventListener("click", ({ currentTarget }) => {
      const part = document.getElementById(this.dataset.part);
      const paused = part.toggleAttribute("data-paused");
      currentTarget.setAttribute("aria-pressed", String(paused));
      if (!paused) part.refresh();
    });
  }
}

customElements.define("omlx-pause", Pause);
