// The dialog of the page with this name.
export const dialog = (name) => document.querySelector(`[data-confirm="${name}"]`);

// Show a dialog with two answers, and its question if the page has none. Resolve to whether it was yes.
export function confirmed(name, question) {
  const asked = dialog(name);
  if (question) asked.querySelector("[data-question]").textContent = question;
  asked.returnValue = "";
  asked.showModal();
  return new Promise((resolve) => {
    asked.addEventListener("close", () => resolve(asked.returnValue === "yes"), { once: true });
  });
}
