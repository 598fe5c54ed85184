// Data of charts, fetched once for all charts of a page, up to the moment that the figures around
// them show; each answer has only what is new.

import { send } from "./api.js";

const LEAST_S = 120; // shortest time axis, for a server that has just started
const listeners = new Set();
const steps = new Map();
let answers = [];
let since = 0;
let fetching = null;

// Call `listener` with { now, begin, step, steps, answers } after every refresh of the page's live
// part. Return a function that stops it.
export function follow(listener) {
  listeners.add(listener);
  refresh();
  return () => listeners.delete(listener);
}

function refresh() {
  if (listeners.size) fetching ??= fetchNew().catch(() => {}).finally(() => (fetching = null));
}

async function fetchNew() {
  const { now: at } = document.querySelector("[data-now]").dataset;
  const { body } = await send("GET", `/live?since=${since}&at=${at}`);
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

document.addEventListener("omlx:refreshed", refresh);
