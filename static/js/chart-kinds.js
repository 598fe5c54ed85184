// Kinds of charts: columns of numbers from samples, and a description for screen readers.

import { percent, rate, ratio } from "./format.js";
import { t } from "./text.js";

// Tokens per second, all and drafted; zero for steps without tokens.
export const tokens = {
  axes: [{ format: rate, tick: (value) => String(value), least: 10 }],
  series: [
    { colour: "--chart-main", fill: "--accent-soft", label: "ui.chart.rate.all" },
    { colour: "--chart-other", label: "ui.chart.rate.drafted" },
  ],
  empty: ([, all]) => (all.some((value) => value > 0) ? "" : t("ui.chart.nothing")),
  columns({ begin, now, step, steps }) {
    const times = [];
    for (let at = Math.ceil(begin / step) * step; at <= now - step; at += step) times.push(at);
    const column = (name) => times.map((at) => steps.get(at)?.[name] ?? 0);
    return [times, column("rate"), column("drafted")];
  },
  describe([times, all], { step }) {
    const minutes = Math.round((times.length * step) / 60);
    const [now, most] = [all.at(-1) ?? 0, Math.max(0, ...all)].map(rate);
    return t("ui.chart.rate.said", { minutes, now, most });
  },
};

const MOST_APART_S = 60; // a line would claim something about the time between two requests

// Speed-up and acceptance rate of finished requests with draft tokens.
export const answers = {
  points: true,
  axes: [
    { format: ratio, tick: (value) => `${value}×`, least: 2 },
    { format: percent, tick: percent, least: 1, most: 1, right: true },
  ],
  series: [
    { colour: "--chart-main", label: "ui.chart.answers.speedup" },
    { colour: "--chart-other", label: "ui.chart.answers.acceptance", axis: 1 },
  ],
  empty: ([times]) => (times.length ? "" : t("ui.chart.answers.none")),
  columns({ answers: ended }) {
    const drafted = withGaps(ended.filter((answer) => answer.acceptance !== null));
    return ["at", "speedup", "acceptance"].map((figure) => drafted.map((answer) => answer[figure]));
  },
  describe([times, speedups, acceptances]) {
    const known = acceptances.filter(Number.isFinite);
    if (!known.length) return t("ui.chart.answers.none");
    const speedup = speedups.findLast(Number.isFinite);
    const newest = { speedup: speedup ? ratio(speedup) : "–", acceptance: percent(known.at(-1)) };
    return t("ui.chart.answers.said", { count: known.length, ...newest });
  },
};

// A point without figures between answers that are far apart ends the line: for uPlot null is a gap,
// and undefined is not.
function withGaps(answers) {
  return answers.flatMap(({ at, speedup, acceptance }, place) => {
    const point = { at, speedup: speedup ?? undefined, acceptance };
    const before = answers[place - 1]?.at ?? at;
    if (at - before <= MOST_APART_S) return [point];
    return [{ at: (before + at) / 2, speedup: null, acceptance: null }, point];
  });
}

export const kinds = { rate: tokens, answers };
