// The figures below an answer, from the server's `usage` and `timings`.

import { percent, rate, ratio } from "../format.js";
import { known, t } from "../text.js";

const MEASURABLE = 8; // fewer tokens make no rate

export function figuresOf(answer) {
  const { timings, firstMs, seed } = answer;
  if (!timings) return [];
  const figures = [];
  if (timings.predicted_n >= MEASURABLE) {
    figures.push(t("ui.chat.rate", { rate: rate(timings.predicted_per_second) }));
  }
  if (firstMs !== undefined) figures.push(t("ui.chat.first", { seconds: seconds(firstMs / 1000) }));
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

function acceptance({ draft_n: proposed, draft_n_accepted: accepted, speculation }) {
  if (!proposed) return [];
  const figures = [t("ui.chat.accepted", { share: percent(accepted / proposed) })];
  if (speculation.speedup !== null) {
    figures.push(t("ui.chat.speedup", { ratio: ratio(speculation.speedup) }));
  }
  return figures;
}

// Two answers of one seed: whether their texts are equal, and how much faster the drafted one was.
export function comparison(drafted, plain) {
  const equal = drafted.text === plain.text && drafted.reasoning === plain.reasoning;
  if (!equal) return t("ui.chat.compared.different");
  const [fast, slow] = [drafted, plain].map(({ timings }) => timings.predicted_per_second);
  if (drafted.timings.predicted_n < MEASURABLE || !slow) return t("ui.chat.compared.equal");
  return t("ui.chat.compared", { ratio: ratio(fast / slow) });
}

export function seconds(value) {
  if (value < 0.9995) return t("unit.milliseconds", { count: Math.round(1000 * value) });
  return t("unit.seconds", { count: value.toFixed(value < 9.95 ? 1 : 0) });
}

export function count(number) {
  return number.toLocaleString("en").replaceAll(",", "\u202f");
}
