// Footnotes in Markdown, as extensions of marked: `[^1]` is a raised mark, `[^1]: text` a small
// paragraph where it is written.

const MARK = /^\[\^([\p{L}\p{N}]{1,20})\]/u;
const NOTE = /^\[\^([\p{L}\p{N}]{1,20})\]:[ \t]+(.+(?:\n(?!\[\^)[^\n]+)*)(?:\n+|$)/u;

const raised = (label) => `<sup>${label}</sup>`;

export const footnoteExtensions = [
  {
    name: "footnote",
    level: "block",
    start: (source) => /(?:^|\n)\[\^/.exec(source)?.index,
    tokenizer(source) {
      const found = NOTE.exec(source);
      if (!found) return undefined;
      const [raw, label, text] = found;
      return { type: "footnote", raw, label, tokens: this.lexer.inlineTokens(text) };
    },
    renderer({ label, tokens }) {
      return `<p class="footnote">${raised(label)} ${this.parser.parseInline(tokens)}</p>`;
    },
  },
  {
    name: "footnoteMark",
    level: "inline",
    start: (source) => /\[\^/.exec(source)?.index,
    tokenizer(source) {
      const found = MARK.exec(source);
      return found ? { type: "footnoteMark", raw: found[0], label: found[1] } : undefined;
    },
    renderer: ({ label }) => raised(label),
  },
];
