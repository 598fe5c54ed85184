// Asks the server what it does for an answer, until there is a token.

import { API } from "../api.js";
import { stageOf } from "./stage.js";

const EVERY_MS = 400;

// Tell the answer about it. Return a function that ends it.
export function watch(answer) {
  let timer = setTimeout(look, EVERY_MS);

  async function look() {
    const { message } = answer;
    if (message.text || message.reasoning) return;
    if (answer.isConnected) {
      const progress = stageOf(message, await fetchLive());
      if (JSON.stringify(progress) !== JSON.stringify(answer.progress)) answer.show(progress);
    }
    if (timer !== null) timer = setTimeout(look, EVERY_MS);
  }

  return () => {
    clearTimeout(timer);
    timer = null;
  };
}

async function fetchLive() {
  try {
    const answer = await fetch(`${API}/live?since=${Math.floor(Date.now() / 1000)}`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}
