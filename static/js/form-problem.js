// What is wrong, said where it is: beside its field, else at the end of the form. What was typed stays.

export function clear(form) {
  for (const place of form.querySelectorAll("[data-problem]")) {
    place.hidden = true;
    place.textContent = "";
  }
  for (const control of form.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
}

// `error` has a message and may name a field; `rest` holds the place for what is nobody's. Focus goes to the field.
export function show(form, error, rest = form) {
  clear(form);
  const field = error.field ? form.querySelector(`[data-field="${CSS.escape(error.field)}"]`) : null;
  const place = field ? field.querySelector("[data-problem]") : rest.querySelector(":scope > [data-problem]");
  place.textContent = error.message.replace(`${error.field}: `, ""); // the field is named by where it stands
  place.hidden = false;
  if (!field) return;
  field.closest("details")?.setAttribute("open", "");
  const control = field.querySelector("input, select, textarea");
  control.setAttribute("aria-invalid", "true");
  control.focus();
}
