// Has a screen reader say what happened.
export function announce(text) {
  document.querySelector("[data-announcer]").textContent = text;
}
