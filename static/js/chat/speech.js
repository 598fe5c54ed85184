// Sentences of a text that grows, for screen readers: they speak whole sentences, not tokens, and
// no code.

const FENCE = /^\s*(```|~~~)/;
const END = /[.!?…:](?=\s)|[。！？]|\n/g;
const MARKS = /[*_`#>|]|^\s*[-+]\s/gm;

export class Sentences {
  #spoken = 0;
  #inCode = false;

  // The sentences that `text` has completed since the last call; with `whole`, the rest of it too.
  read(text, { whole = false } = {}) {
    const rest = text.slice(this.#spoken);
    const ends = [...rest.matchAll(END)];
    const end = whole ? rest.length : ends.length ? ends.at(-1).index + ends.at(-1)[0].length : 0;
    this.#spoken += end;
    return this.#prose(rest.slice(0, end));
  }

  #prose(text) {
    const lines = text.split("\n").filter((line) => {
      const fence = FENCE.test(line);
      if (fence) this.#inCode = !this.#inCode;
      return !fence && !this.#inCode;
    });
    const sentences = lines.map((line) => line.replace(MARKS, "").trim());
    return sentences.filter(Boolean).join(" ");
  }
}
