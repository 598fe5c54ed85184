// Answers as Markdown, with highlighted code and formulas. An answer is hostile until proven
// otherwise: its HTML is shown as text, its images are links (loading them would tell other hosts),
// links lead to the web only, and what is left goes through DOMPurify.
//
// marked, DOMPurify, highlight.js and KaTeX are in static/vendor; the latter two are loaded by the
// first answer that needs them. Without the libraries answers are plain text.

import { footnoteExtensions } from "./footnote-syntax.js";
import { Library } from "./library.js";
import { mathExtensions } from "./math-syntax.js";

const HEADING_BELOW = 2; // the page has the first two levels

const TAGS = `p br hr h3 h4 h5 h6 strong em del code pre blockquote ul ol li a span
  table thead tbody tr th td input sup`.split(/\s+/);
const PLAIN = "rel target class align start type checked disabled data-math".split(" ");
const CODE = 'pre > code[class^="language-"]';
const FORMULA = "[data-math]";
const WEB = /^(?:https?|mailto):/i;

let marked = null;
let purify = null;
const highlighter = new Library("highlight/highlight.min.js", CODE, highlight);
const formulas = new Library("katex/katex.mjs", FORMULA, typeset);

export async function loadMarkdown() {
  const [{ Marked }, { default: DOMPurify }] = await Promise.all([
    import("../../vendor/marked/marked.esm.js"),
    import("../../vendor/dompurify/purify.es.mjs"),
  ]);
  marked = new Marked({ renderer, extensions: [...footnoteExtensions, ...mathExtensions] });
  purify = DOMPurify;
}

// The text of an answer as it grows: only the blocks (paragraph, list, code, …) that differ from
// the last time are rendered again. `decorate` adds to a block of code, when it is new.
export class Prose {
  blocks = [];

  constructor(element, decorate) {
    this.element = element;
    this.decorate = decorate;
    element.classList.toggle("prose-plain", marked === null);
    highlighter.retry();
    formulas.retry();
  }

  update(text) {
    if (text === this.text) return;
    this.text = text;
    if (marked === null) {
      this.element.textContent = text;
      this.blocks = [{ start: 0, source: text, element: this.element }];
      return;
    }
    const tokens = marked.lexer(text);
    let start = 0;
    tokens.forEach((token, index) => {
      this.#put(index, token, start);
      start += token.raw.length;
    });
    this.blocks.splice(tokens.length).forEach(({ element }) => element.remove());
  }

  #put(index, token, start) {
    const old = this.blocks[index];
    if (old?.source === token.raw) return;
    const element = document.createElement("div");
    element.append(sanitised(marked.parser([token])));
    this.#extend(element);
    if (old) old.element.replaceWith(element);
    else this.element.append(element);
    this.blocks[index] = { start, source: token.raw, element };
  }

  #extend(element) {
    for (const code of element.querySelectorAll("pre > code")) {
      this.decorate(code.parentElement, languageOf(code));
    }
    for (const code of element.querySelectorAll(CODE)) highlighter.use(code);
    for (const formula of element.querySelectorAll(FORMULA)) formulas.use(formula);
  }
}

function sanitised(html) {
  return purify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", ...PLAIN],
    ADD_URI_SAFE_ATTR: PLAIN, // only what is an address has to be one of the web
    ALLOWED_URI_REGEXP: WEB,
    ALLOW_ARIA_ATTR: false,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}

const renderer = {
  html({ text, block }) {
    if (/^<br\s*\/?>\s*$/i.test(text)) return "<br>";
    return block ? `<p>${escaped(text)}</p>` : escaped(text);
  },
  link({ href, tokens }) {
    return link(href, this.parser.parseInline(tokens));
  },
  image({ href, text }) {
    return link(href, escaped(text || href));
  },
  heading({ tokens, depth }) {
    const level = Math.min(6, depth + HEADING_BELOW);
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
  },
  code({ text, lang }) {
    const language = /^[\w+#.-]+/.exec(lang ?? "")?.[0];
    const named = language ? ` class="language-${escaped(language)}"` : "";
    return `<pre><code${named}>${escaped(text)}\n</code></pre>`;
  },
};

function link(href, label) {
  if (!WEB.test(href)) return label;
  return `<a href="${escaped(href)}" target="_blank" rel="noopener noreferrer">${label}</a>`;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => ENTITIES[character]);
}

function languageOf(code) {
  return code.className.replace("language-", "");
}

function highlight(library, code) {
  const language = library.getLanguage(languageOf(code)) && languageOf(code);
  if (!language) return;
  const { value } = library.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(sanitised(value));
}

// KaTeX builds MathML, which browsers draw themselves: no fonts, no inline styles. A formula that
// it cannot read stays as it was written.
function typeset(library, formula) {
  const source = formula.textContent;
  const displayMode = formula.dataset.math === "block";
  const options = { displayMode, output: "mathml", maxExpand: 500, maxSize: 20, strict: "ignore" };
  try {
    library.render(source, formula, { ...options, throwOnError: true, trust: false });
  } catch {
    formula.textContent = source;
  }
}
