// Puts something newer into an element. Focus stays on the element of the same id, and what was opened stays open.
export function renew(element, replace) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  const open = [...element.querySelectorAll("details[open][id]")].map((each) => each.id);
  replace();
  for (const id of open) element.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  if (focused) element.querySelector(`#${CSS.escape(focused)}`)?.focus({ preventScroll: true });
}
