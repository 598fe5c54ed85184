// Show a dialog with two answers, and its question if the page has none. Resolve to whether it was yes.
export function confirmed(dialog, question) {
  if (question) dialog.querySelector("[data-question]").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
