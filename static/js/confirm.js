// Ask a question in the dialog of an element. Resolve to whether the answer was yes.
export function confirmed(element, question) {
  const dialog = element.querySelector("[data-confirm]");
  dialog.querySelector("[data-question]").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
