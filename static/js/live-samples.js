// Data of charts, polled once for all charts of a page; each answer has only what is new.

import { send } from "./api.js";
import { isLoggedOut } from "./session.js";

const EVERY_MS = 2000;
const LEAST_S = 120; // shortest time axis, for a server that has just started
const listeners = new Set();
const steps = new Map();
let answers = [];
let since = 0;
let timer = null;

// Call `listener` with { now, begin, step, steps, answers } at every poll. Return a function that
// stops it.
export function follow(listener) {
  listeners.add(listener);
  if (listeners.size === 1) poll();
  return () => {
    listeners.delete(listener);
    if (!listeners.size) clearTimeout(timer);
  };
}

async function poll() {
  clearTimeout(timer);
  const due = document.visibilityState === "visible" && !isLoggedOut();
  if (due) await fetchNew().catch(() => {});
  if (listeners.size) timer = setTimeout(poll, EVERY_MS);
}

async function fetchNew() {
  const { body } = await send("GET", `/live?since=${since}`);
  const begin = body.now - body.shown_s;
  for (const step of body.steps) steps.set(step.at, step);
  for (const at of steps.keys()) if (at < begin - body.step_s) steps.delete(at);
  answers = [...answers, ...body.answers].filter((answer) => answer.at >= begin);
  since = body.now;
  const oldest = Math.min(...steps.keys(), body.now - LEAST_S);
  const axis = { now: body.now, begin: Math.max(begin, oldest), step: body.step_s };
  const samples = { ...axis, steps, answers };
  for (const listener of listeners) listener(samples);
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && listeners.size) poll();
});
