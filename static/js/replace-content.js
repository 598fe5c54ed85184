// Replace the content of an element. Focus stays on the element of the same id; opened details
// stay open.
export function replaceContent(element, replace) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  const open = [...element.querySelectorAll("details[open][id]")].map((details) => details.id);
  replace();
  for (const id of open) element.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  if (focused) element.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
}
