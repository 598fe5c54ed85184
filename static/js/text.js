// Words in the language of the page, from the same catalog as the templates.

import catalog from "./words.json" with { type: "json" };

// The sentence of a key, with `{name}` and `{name:format}` filled in; a key that is not there is shown as itself.
export function t(key, params = {}) {
  const template = catalog[key];
  if (template === undefined) return [key, ...Object.entries(params).map((each) => each.join("="))].join(" ");
  return template.replace(/\{(\w+)(?::[^}]*)?\}/g, (field, name) => (name in params ? String(params[name]) : field));
}

export function known(key) {
  return key in catalog;
}
