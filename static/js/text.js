// Texts in the language of the page, from the same catalog as the templates.

import catalog from "./words.js";

// The sentence of a key, with `{name}` and `{name:format}` filled in; an unknown key itself.
export function t(key, params = {}) {
  const template = catalog[key];
  if (template === undefined) {
    return [key, ...Object.entries(params).map((entry) => entry.join("="))].join(" ");
  }
  const value = (field, name) => (name in params ? String(params[name]) : field);
  return template.replace(/\{(\w+)(?::[^}]*)?\}/g, value);
}

export function known(key) {
  return key in catalog;
}
