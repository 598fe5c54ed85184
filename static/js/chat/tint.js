// Tint the parts of a rendered answer that came from drafts. The runs are in characters of the
// source; words of the page are found again in it, in order, block by block. The page itself stays
// as it is: ranges are painted by the style sheet (CSS Custom Highlight API).

const NAME = "drafted";

export const canTint = "highlights" in (globalThis.CSS ?? {});

// Runs of non-blank characters of `text`, each with its place in `source`, or left out where the
// source spells it differently (an escaped character).
export function placed(text, source, from = 0) {
  const words = [];
  let at = from;
  for (const { 0: word, index } of text.matchAll(/\S+/g)) {
    const found = source.indexOf(word, at);
    if (found < 0) continue;
    words.push({ index, length: word.length, at: found });
    at = found + word.length;
  }
  return { words, end: at };
}

// The parts of a word at `at` that lie in runs, as [start, end) within the word.
export function overlaps({ at, length }, runs) {
  const parts = runs.map(([start, end]) => [Math.max(start - at, 0), Math.min(end - at, length)]);
  return parts.filter(([start, end]) => start < end);
}

// `blocks`: elements with the place and the text of their source.
export function tint(blocks, runs) {
  const highlight = CSS.highlights.get(NAME) ?? new Highlight();
  CSS.highlights.set(NAME, highlight);
  const ranges = blocks.flatMap((block) => rangesOf(block, runs));
  ranges.forEach((range) => highlight.add(range));
  return () => ranges.forEach((range) => highlight.delete(range));
}

function rangesOf({ element, start, source }, runs) {
  const ranges = [];
  const inside = runs.map(([from, to]) => [from - start, to - start]);
  const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let at = 0;
  while (nodes.nextNode()) {
    const node = nodes.currentNode;
    if (node.parentElement.closest("math, [data-extra]")) continue;
    const { words, end } = placed(node.data, source, at);
    at = end;
    for (const word of words) {
      for (const [from, to] of overlaps(word, inside)) {
        const range = new StaticRange({
          startContainer: node,
          startOffset: word.index + from,
          endContainer: node,
          endOffset: word.index + to,
        });
        ranges.push(range);
      }
    }
  }
  return ranges;
}
