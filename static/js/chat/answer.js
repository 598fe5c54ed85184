// An answer that the server generates: started, followed, resumed after a lost connection or a
// reload, stopped. It goes on in the background of the page when another conversation is shown.

import { API, Refused, refusal } from "../api.js";
import { isLoggedOut } from "../session.js";
import { apply } from "./answer-events.js";
import { EventReader } from "./event-stream.js";
import { watch } from "./progress.js";
import * as store from "./store.js";

const RESPONSES = `${API}/chat/responses`;
const SAVE_MS = 1000;
const AGAIN_MS = 2000;
const GONE = 404;

const running = new Map(); // by the id of the message

document.addEventListener("omlx:changed", () => running.forEach((answer) => answer.retry()));

export function runningAnswer(id) {
  return running.get(id);
}

const lockOf = (id) => `omlx-chat-${id}`;

// Whether a window of this browser waits for the server to begin an answer.
export async function isBeingStarted(id) {
  const { held = [] } = (await navigator.locks?.query()) ?? {};
  return held.some(({ name }) => name === lockOf(id));
}

// `message` changes while it is followed; `changed` events say so. `progress` says what the server
// does before the first token; `isConnected` is false while the server is not reached.
export class Answer extends EventTarget {
  constructor(message) {
    super();
    this.message = message;
    this.progress = null;
    this.isConnected = true;
    this.leaving = new AbortController();
    running.set(message.id, this);
  }

  // Generate it from the body of a request. It is stopped when it is as long as `until`, an answer.
  // Never rejects: the message says what happened.
  async start(body, until = null) {
    this.until = until;
    const payload = JSON.stringify(body);
    const headers = { "Content-Type": "application/json" };
    const request = { method: "POST", headers, body: payload, signal: this.leaving.signal };
    const run = () => this.#run(() => fetch(RESPONSES, request));
    await (navigator.locks ? navigator.locks.request(lockOf(this.message.id), run) : run());
  }

  // Follow it from where it was left.
  async resume() {
    this.message.resumed = true;
    await this.#run(() => this.#again());
  }

  async stop() {
    this.stopped = true;
    const { response } = this.message;
    const cancel = () => fetch(`${RESPONSES}/${response}/cancel`, { method: "POST" });
    const reached = response && (await cancel().then(({ ok }) => ok, () => false));
    if (!reached) this.leave(); // before the response is created, this ends the request
  }

  leave() {
    this.leaving.abort();
    this.wake?.();
  }

  // Try at once to reach a lost server.
  retry() {
    this.wake?.();
  }

  #again() {
    const { response, sequence } = this.message;
    const query = new URLSearchParams({ stream: true, starting_after: sequence });
    return fetch(`${RESPONSES}/${response}?${query}`, { signal: this.leaving.signal });
  }

  async #run(open) {
    const unwatch = watch(this);
    try {
      while (!(await this.#follow(open))) open = () => this.#again();
    } catch (error) {
      await this.#fail(error);
    }
    unwatch();
    if (this.until) this.message.text = this.message.text.slice(0, this.until.text.length);
    running.delete(this.message.id);
    await this.#save(true);
    this.#changed();
    this.#forget();
  }

  // Read one stream. Return whether the answer has ended; wait for the server if it is not reached.
  async #follow(open) {
    let answer;
    try {
      answer = await open();
      if (answer.ok) {
        this.isConnected = true;
        this.#changed();
        if (await this.#read(answer.body)) return true;
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      answer = null;
    }
    const { response } = this.message;
    if (answer && !answer.ok) {
      const refused = await refusal(answer);
      if (!isLoggedOut() || !response) throw refused;
    }
    if (!response) throw new Lost();
    this.message.resumed = true;
    this.isConnected = false;
    this.#changed(); // each time: meanwhile the session may have ended
    await this.#pause();
    return false;
  }

  async #read(body) {
    const events = new EventReader();
    const pieces = body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece; !(piece = await pieces.read()).done; ) {
      let ended = false;
      for (const event of events.feed(piece.value)) {
        ended = apply(this.message, event, Date.now()) || ended;
      }
      if (ended) return true;
      if (this.until && !this.stopped && isAsLong(this.message, this.until)) this.stop();
      this.#save();
      this.#changed();
    }
    return false;
  }

  #pause() {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, AGAIN_MS);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #fail(error) {
    const { message } = this;
    const isGone = error instanceof Lost || (error.status === GONE && message.response);
    if (this.stopped) message.status = "stopped";
    else if (isGone) {
      message.status = "lost";
      Object.assign(message, await store.ended(message)); // another window may have all of it
    } else {
      message.status = "failed";
      const { code, params } = error;
      message.error = { code, params, message: error.message };
      if (!(error instanceof Refused)) console.error(error);
    }
  }

  async #save(last = false) {
    const now = Date.now();
    if (!last && now - (this.savedAt ?? 0) < SAVE_MS) return;
    this.savedAt = now;
    await store.saveMessage(this.message);
  }

  // What the browser has, the server need not keep.
  #forget() {
    const { response, status } = this.message;
    const has = response && status !== "lost";
    if (has) fetch(`${RESPONSES}/${response}`, { method: "DELETE" }).catch(() => {});
  }

  #changed() {
    this.dispatchEvent(new Event("changed"));
  }

  // For `watch`.
  show(progress) {
    this.progress = progress;
    this.#changed();
  }
}

function isAsLong(message, { text, reasoning }) {
  return message.text.length >= text.length && message.reasoning.length >= reasoning.length;
}

class Lost extends Error {}
