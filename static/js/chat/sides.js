// The two panels beside the conversation. On a narrow window they are popovers above it; on a wide
// one they stand beside it, open or closed as they were left.

const NARROW = matchMedia("(width <= 60rem)");
const KEPT = "omlx-chat-panel-";

export class Side {
  // `isOpenAtFirst`: on a wide window.
  constructor(panel, button, isOpenAtFirst) {
    this.panel = panel;
    this.button = button;
    this.isOpenAtFirst = isOpenAtFirst;
    button.addEventListener("click", () => {
      if (!panel.popover) this.#set(panel.hidden);
    });
    panel.addEventListener("toggle", () => this.#tell());
    panel.querySelector("[data-close]").addEventListener("click", () => this.close());
    NARROW.addEventListener("change", () => this.#fit());
    this.#fit();
  }

  get isOpen() {
    const { panel } = this;
    return panel.popover ? panel.matches(":popover-open") : !panel.hidden;
  }

  // Hide the panel; the focus goes to its button.
  close() {
    this.leave();
    if (!this.panel.popover) this.#set(false);
    this.button.focus();
  }

  open() {
    if (!this.panel.popover) this.#set(true);
    else if (!this.panel.matches(":popover-open")) this.panel.showPopover();
  }

  // A popover has done its work; a panel beside the conversation stays.
  leave() {
    if (this.panel.popover) this.panel.hidePopover();
  }

  #set(isOpen) {
    this.panel.hidden = !isOpen;
    localStorage.setItem(KEPT + this.panel.id, isOpen ? "open" : "closed");
    this.#tell();
  }

  // As the target of its button a popover is opened and closed by the browser.
  #fit() {
    const { panel, button } = this;
    const kept = localStorage.getItem(KEPT + panel.id);
    const isOpen = kept === null ? this.isOpenAtFirst : kept === "open";
    panel.popover = NARROW.matches ? "auto" : null;
    button.popoverTargetElement = NARROW.matches ? panel : null;
    panel.hidden = !NARROW.matches && !isOpen;
    this.#tell();
  }

  #tell() {
    this.button.setAttribute("aria-expanded", String(this.isOpen));
  }
}
