// Error messages of a form, beside the field at fault or at the end of the form. The input stays.

export function clear(form) {
  for (const place of form.querySelectorAll("[data-problem]")) {
    place.hidden = true;
    place.textContent = "";
  }
  for (const control of form.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
  }
}

// `error` has a message and may name a field, which gets the focus. `general` has the place for
// other errors.
export function show(form, error, general = form) {
  clear(form);
  const field = error.field && form.querySelector(`[data-field="${CSS.escape(error.field)}"]`);
  const place = field
    ? field.querySelector("[data-problem]")
    : general.querySelector(":scope > [data-problem]");
  place.textContent = error.message.replace(`${error.field}: `, ""); // it is beside the field
  place.hidden = false;
  if (!field) return;
  field.closest("details")?.setAttribute("open", "");
  const control = field.querySelector("input, select, textarea");
  control.setAttribute("aria-invalid", "true");
  control.focus();
}
