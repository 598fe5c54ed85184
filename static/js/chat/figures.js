// The figures below an answer, from the server's `usage` and `timings`.

import { percent, rate, ratio } from "../format.js";
import { known, t } from "../text.js";

const MEASURABLE = 8; // fewer tokens make no rate
const COMPARABLE = 30; // fewer make no speed-up that a repeat would agree with

// The two that count, for the line below an answer: its speed, and what drafts brought.
export function summaryOf({ timings }) {
  if (!timings) return "";
  const speed = timings.predicted_n >= MEASURABLE;
  const figures = speed ? [t("ui.chat.rate", { rate: rate(timings.predicted_per_second) })] : [];
  const [accepted, speedup] = acceptance(timings);
  if (speedup ?? accepted) figures.push(speedup ?? accepted);
  return figures.join(" · ") || t("ui.chat.figures");
}

export function figuresOf(answer) {
  const { timings, firstMs, seed } = answer;
  if (!timings) return [];
  const figures = [];
  if (firstMs !== undefined) figures.push(t("ui.chat.first", { seconds: seconds(firstMs / 1000) }));
  figures.push(t("ui.chat.tokens", { count: count(timings.predicted_n) }));
  figures.push(...acceptance(timings));
  const prompt = count(timings.cache_n + timings.prompt_n);
  figures.push(t("ui.chat.cached", { cached: count(timings.cache_n), prompt }));
  figures.push(t("ui.chat.seed", { seed }));
  return figures;
}

// Why an answer was not drafted; empty if it was.
export function undrafted({ timings }) {
  if (!timings || timings.draft_n) return "";
  const { code, params } = timings.speculation;
  return known(code) ? t("ui.chat.no_drafts", { reason: t(code, params) }) : "";
}

function acceptance({ draft_n: proposed, draft_n_accepted: accepted, predicted_n, speculation }) {
  if (!proposed) return [];
  const figures = [t("ui.chat.accepted", { share: percent(accepted / proposed) })];
  if (speculation.speedup !== null && predicted_n >= COMPARABLE) {
    figures.push(t("ui.chat.speedup", { ratio: ratio(speculation.speedup) }));
  }
  return figures;
}

// Two answers of one seed: whether their texts are equal, and how much faster the drafted one was.
// Of one that was stopped, its beginning counts.
export function comparison(drafted, plain) {
  const isWhole = drafted.status === "done" && plain.status === "done";
  const same = isWhole ? (one, other) => one === other : isBeginning;
  const equal = same(drafted.text, plain.text) && same(drafted.reasoning, plain.reasoning);
  if (!equal) return t("ui.chat.compared.different");
  if (!isWhole) return t("ui.chat.compared.stopped");
  const [fast, slow] = [drafted, plain].map(({ timings }) => timings?.predicted_per_second);
  const isShort = !slow || !fast || drafted.timings.predicted_n < COMPARABLE;
  return isShort ? t("ui.chat.compared.equal") : t("ui.chat.compared", { ratio: ratio(fast / slow) });
}

// Whether one of two texts begins with the other.
function isBeginning(one, other) {
  return one.startsWith(other) || other.startsWith(one);
}

export function seconds(value) {
  if (value < 0.9995) return t("unit.milliseconds", { count: Math.round(1000 * value) });
  return t("unit.seconds", { count: value.toFixed(value < 9.95 ? 1 : 0) });
}

// A time to come: minutes from 100 s on, as coarse as the estimate.
export function duration(value) {
  if (value < 100) return seconds(value);
  const minutes = Math.round(value / 60);
  if (minutes < 60) return t("unit.minutes", { count: minutes });
  return t("unit.hours", { hours: Math.floor(minutes / 60), minutes: minutes % 60 });
}

export function count(number) {
  return number.toLocaleString("en").replaceAll(",", "\u202f");
}

export function sizeOf(bytes) {
  if (bytes < 1000) return `${bytes}\u202fB`;
  if (bytes < 1e6) return `${Math.round(bytes / 1e3)}\u202fkB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)}\u202fMB`;
  return `${(bytes / 1e9).toFixed(bytes < 1e10 ? 1 : 0)}\u202fGB`;
}
