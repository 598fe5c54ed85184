// Have screen readers announce an event.
export function announce(text) {
  document.querySelector("[data-announcer]").textContent = text;
}
