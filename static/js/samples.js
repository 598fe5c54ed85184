// What charts show, asked for once for all charts of a page: each time only what is new since the time before.

import { send } from "./api.js";

const EVERY_MS = 2000;
const LEAST_S = 120; // a server that has just begun is not shown as ten minutes of nothing
const listeners = new Set();
const steps = new Map();
let answers = [];
let since = 0;
let timer = null;

// Have `listener` called with { now, begin, step, steps, answers } whenever there is something new.
// Returns how to stop.
export function follow(listener) {
  listeners.add(listener);
  if (listeners.size === 1) look();
  return () => {
    listeners.delete(listener);
    if (!listeners.size) clearTimeout(timer);
  };
}

async function look() {
  clearTimeout(timer);
  if (document.visibilityState === "visible") await ask().catch(() => {});
  if (listeners.size) timer = setTimeout(look, EVERY_MS);
}

async function ask() {
  const { body } = await send("GET", `/live?since=${since}`);
  const begin = body.now - body.shown_s;
  for (const step of body.steps) steps.set(step.at, step);
  for (const at of steps.keys()) if (at < begin - body.step_s) steps.delete(at);
  answers = [...answers, ...body.answers].filter((answer) => answer.at >= begin);
  since = body.now;
  const first = Math.min(...steps.keys(), body.now - LEAST_S);
  const samples = { now: body.now, begin: Math.max(begin, first), step: body.step_s, steps, answers };
  for (const listener of listeners) listener(samples);
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && listeners.size) look();
});
