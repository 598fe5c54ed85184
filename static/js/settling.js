// A button that has changed its meaning ignores clicks for a second: they were meant for the old
// one. `element` has buttons with `data-action`; the observer that is returned can be disconnected.

const SETTLING_MS = 1000;
const settled = new WeakMap();

export function watchActions(element) {
  const changes = new MutationObserver((records) => records.forEach(({ target }) => settle(target)));
  changes.observe(element, { subtree: true, attributeFilter: ["data-action"] });
  return changes;
}

// The button of a click, null unless it may act.
export function pressed(event) {
  const button = event.target.closest("[data-action]");
  return button && !("settling" in button.dataset) ? button : null;
}

function settle(button) {
  clearTimeout(settled.get(button));
  button.dataset.settling = "";
  settled.set(button, setTimeout(() => delete button.dataset.settling, SETTLING_MS));
}
