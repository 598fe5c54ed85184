// How many tokens a text may have, without its tokenizer.

const DENSE = /[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]/g;
const DENSE_CHARACTERS = 1.4; // per token, of Chinese, Japanese and Korean
const CHARACTERS = 4; // per token, of other texts
const PRIOR = 500; // tokens: a shorter conversation, mostly template, teaches little

export function estimate(text) {
  const dense = text.match(DENSE)?.length ?? 0;
  return dense / DENSE_CHARACTERS + (text.length - dense) / CHARACTERS;
}

// The tokens of a branch and of what is `typed`: as the server has counted them up to its newest
// answer, and from there on by the ratio of count and estimate so far. `isExact`: all are counted.
export function tokensOf(turns, typed) {
  const counted = turns.findLastIndex(({ usage }) => usage);
  const textOf = ({ text, reasoning = "" }) => text + reasoning;
  const filesOf = ({ images = [] }) => images.reduce((sum, { tokens }) => sum + (tokens ?? 0), 0);
  const ofTurn = (turn) => estimate(textOf(turn)) + filesOf(turn);
  const guess = (part) => part.reduce((sum, turn) => sum + ofTurn(turn), 0);
  const used = counted < 0 ? 0 : turns[counted].usage.total_tokens;
  const known = guess(turns.slice(0, counted + 1));
  const ratio = (used + PRIOR) / (known + PRIOR);
  const rest = ratio * (guess(turns.slice(counted + 1)) + estimate(typed));
  return { tokens: used + Math.ceil(rest), isExact: rest === 0 };
}
