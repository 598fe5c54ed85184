// A menu that closes on Escape, on a click elsewhere and when the focus leaves it.

class Menu extends HTMLElement {
  connectedCallback() {
    this.details = this.querySelector("details");
    this.addEventListener("keydown", (event) => this.onKey(event));
    this.addEventListener("focusout", (event) => this.onLeave(event));
    document.addEventListener("pointerdown", this.onPointer);
  }

  disconnectedCallback() {
    document.removeEventListener("pointerdown", this.onPointer);
  }

  onPointer = (event) => {
    if (!this.contains(event.target)) this.details.open = false;
  };

  onKey(event) {
    if (event.key !== "Escape" || !this.details.open) return;
    this.details.open = false;
    this.querySelector("summary").focus();
  }

  onLeave(event) {
    if (event.relatedTarget && !this.contains(event.relatedTarget)) this.details.open = false;
  }
}

customElements.define("omlx-menu", Menu);
