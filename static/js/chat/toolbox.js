// Tools of the servers that the settings of omlx name: loaded when a conversation switches them on,
// called when the user has allowed it, for once or for good.

import { send } from "../api.js";
import { t } from "../text.js";
import * as store from "./store.js";

const ALLOWED = "omlx-chat-tools-allowed"; // names of tools, for this browser
const MOST_ROUNDS = 20; // of calls in a row that nobody was asked about
const REFUSED = "The user refused this call.";

export class Toolbox {
  #tools = new Map(); // by server

  // `place` says how many tools there are, `again` asks about all of them again; null where the
  // settings name no server.
  constructor(place, again) {
    this.place = place;
    this.again = again;
  }

  // Load the tools of servers, whose names are joined by commas. Return why not, or nothing.
  async load(servers) {
    let problem = "";
    try {
      for (const server of servers.split(",").filter(Boolean)) await this.#ask(server);
    } catch (error) {
      problem = error.message;
    }
    const { length: count } = this.known(servers);
    this.#tell(problem || (count ? t("ui.chat.tools.count", { count }) : ""));
    return problem;
  }

  async #ask(server) {
    if (this.#tools.has(server)) return;
    const { body } = await send("POST", `/chat/tools/${encodeURIComponent(server)}`);
    this.#tools.set(server, body.tools);
  }

  #tell(text) {
    if (!this.place) return;
    this.place.textContent = text;
    this.again.hidden = !this.allowed.size;
  }

  known(servers) {
    return servers.split(",").flatMap((server) => this.#tools.get(server) ?? []);
  }

  get allowed() {
    try {
      return new Set(JSON.parse(localStorage.getItem(ALLOWED)) ?? []);
    } catch {
      return new Set();
    }
  }

  allow(name) {
    try {
      localStorage.setItem(ALLOWED, JSON.stringify([...this.allowed, name]));
    } catch {
      // it is asked for again
    }
  }

  askAgain() {
    localStorage.removeItem(ALLOWED);
    this.again.hidden = true;
  }
}

export const isSettled = ({ status }) => status === "done" || status === "refused";

// The calls of answers: decided, made, and answered by the model again.
export class ToolLoop {
  // `changed` draws an answer; `answer` lets the model go on with the results below it.
  constructor(toolbox, { changed, answer }) {
    Object.assign(this, { toolbox, changed, answer });
  }

  // Make the calls of an answer that has ended which need no question; `turns` lead to it. Of
  // several windows one does.
  async ended(message, turns) {
    if (message.status !== "done" || message.twin || !message.calls?.length) return;
    const since = turns.slice(turns.findLastIndex(({ role }) => role === "user"));
    if (since.length > MOST_ROUNDS) return;
    const { allowed } = this.toolbox;
    const free = message.calls.filter(({ name, status }) => status === "asked" && allowed.has(name));
    if (!free.length) return;
    const run = (lock) => lock && this.#make(message, free);
    if (!navigator.locks) await run(true);
    else await navigator.locks.request(`tools-${message.id}`, { ifAvailable: true }, run);
  }

  // `decision`: once, always or refuse.
  async decide(message, id, decision) {
    const call = message.calls.find((each) => each.id === id);
    if (call.status !== "asked") return;
    if (decision === "always") this.toolbox.allow(call.name);
    if (decision === "refuse") {
      Object.assign(call, { status: "refused", result: REFUSED });
      await this.#settled(message);
    } else await this.#make(message, [call]);
  }

  async #make(message, calls) {
    for (const call of calls) call.status = "running";
    this.changed(message);
    await Promise.all(calls.map((call) => make(call)));
    await this.#settled(message);
  }

  async #settled(message) {
    await store.saveMessage(message);
    this.changed(message);
    if (message.calls.every(isSettled)) await this.answer(message);
  }
}

async function make(call) {
  const { name, arguments: given } = call;
  try {
    const { body } = await send("POST", "/chat/tools", { name, arguments: given });
    Object.assign(call, { result: body.text || t("ui.chat.call.empty"), failed: body.failed });
  } catch (error) {
    Object.assign(call, { result: error.message, failed: true });
  }
  call.status = "done";
}
