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

// `error` has a message and may name a field, whose first control gets the focus. `general` has the
// place for other errors.
export function show(form, error, general = form) {
  clear(form);
  const field = error.field && form.querySelector(`[data-field="${CSS.escape(error.field)}"]`);
  const message = error.message.replace(`${error.field}: `, ""); // it is beside the field
  write(field || general, message);
  if (field) mark(field.querySelector("input, select, textarea:not([hidden])"));
}

// Show the first problem that a behaviour has found in a control. Return whether there is one.
export function showInvalid(form) {
  clear(form);
  const control = [...form.elements].find(({ validity }) => validity?.customError);
  if (!control) return false;
  write(control.closest("[data-field]"), control.validationMessage);
  mark(control);
  return true;
}

// Fields may hold other fields: the place is the one of `owner` itself.
function write(owner, message) {
  const field = owner.closest("[data-field]");
  const places = [...owner.querySelectorAll("[data-problem]")];
  const place = places.find((each) => each.closest("[data-field]") === field);
  place.textContent = message;
  place.hidden = false;
}

function mark(control) {
  control.closest("details")?.setAttribute("open", "");
  control.setAttribute("aria-invalid", "true");
  control.focus();
}
