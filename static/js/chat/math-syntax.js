// Formulas in Markdown, $…$, $$…$$, \(…\), \[…\], as extensions of marked. Amounts of money are no
// formulas: a closing $ has no blank before it and no digit after it.

const INLINE = [
  /^\\\(([\s\S]+?)\\\)/,
  /^\$(?![\s$])((?:\\[\s\S]|[^$\\\n])*?[^\s$\\])\$(?![\d$])/,
];
const DISPLAY = [/^\\\[([\s\S]+?)\\\]/, /^\$\$([\s\S]+?)\$\$/];

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };

function escaped(text) {
  return text.replace(/[&<>]/g, (character) => ENTITIES[character]);
}

function tokenizer(type, forms, ending = "") {
  return (source) => {
    for (const form of forms) {
      const found = new RegExp(form.source + ending).exec(source);
      if (found) return { type, raw: found[0], text: found[1].trim() };
    }
    return undefined;
  };
}

export const mathExtensions = [
  {
    name: "formula",
    level: "block",
    start: (source) => /\n(?:\$\$|\\\[)/.exec(source)?.index,
    tokenizer: tokenizer("formula", DISPLAY, "[ \\t]*(?:\\n|$)"),
    renderer: ({ text }) => `<p><span data-math="block">${escaped(text)}</span></p>`,
  },
  {
    name: "inlineFormula",
    level: "inline",
    start: (source) => /\$|\\[([]/.exec(source)?.index,
    tokenizer(source) {
      const display = tokenizer("inlineFormula", DISPLAY)(source);
      if (display) return { ...display, kind: "block" };
      return tokenizer("inlineFormula", INLINE)(source);
    },
    renderer: ({ text, kind = "inline" }) =>
      `<span data-math="${kind}">${escaped(text)}</span>`,
  },
];
