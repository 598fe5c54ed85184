// Titles of conversations by their model: one short request after the first answer, while the server
// has nothing else to do. A title that the user has written stays.

import { API } from "../api.js";
import { t } from "../text.js";
import { requestBody } from "./request.js";
import { titleFrom } from "./tree.js";

const OFF = "omlx-chat-titles-off";
const QUIET_MS = 1500; // of nothing to do
const TRIES = 40;
const MOST_TOKENS = 32;
const TITLED_WITHIN = 6; // messages

export class Titles {
  // `box` switches them on and off. `isFree`: whether this page asks for nothing.
  constructor(box, isFree) {
    this.box = box;
    this.isFree = isFree;
    box.checked = localStorage.getItem(OFF) === null;
    box.addEventListener("change", () => {
      if (box.checked) localStorage.removeItem(OFF);
      else localStorage.setItem(OFF, "1");
    });
  }

  // Leave the server to what the user asks now.
  leave() {
    this.leaving?.abort();
  }

  // Have the model write a title, once, in the first turns. Resolve to whether there is a new one.
  async entitle(conversation, thinks) {
    const { path: turns, head } = conversation;
    if (head.titled || turns.length > TITLED_WITHIN) return false;
    const title = await this.#suggest(turns.slice(0, 2), thinks);
    if (!title || head.titled) return false;
    await conversation.organise({ title, titled: "model" });
    return true;
  }

  // Resolve to a title for the conversation of these turns, or null.
  async #suggest(turns, thinks) {
    this.leave();
    const leaving = (this.leaving = new AbortController());
    for (let attempt = 0; attempt < TRIES; attempt += 1) {
      await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
      if (leaving.signal.aborted || !this.box.checked) return null;
      if (this.isFree() && (await isIdle())) return this.#ask(turns, thinks, leaving.signal);
    }
    return null;
  }

  async #ask(turns, thinks, signal) {
    const { settings, seed } = turns.at(-1);
    const own = { temperature: "0", thinking: thinks ? "off" : "", schema: "" };
    const asked = [...turns, { role: "user", text: t("ui.chat.titles.prompt") }];
    const options = { seed, most: MOST_TOKENS };
    const body = requestBody(asked, { ...settings, ...own }, options);
    const once = { stream: false, background: false, store: false, mark_drafted: false, priority: 10 };
    const payload = JSON.stringify({ ...body, ...once });
    const headers = { "Content-Type": "application/json" };
    try {
      const request = { method: "POST", headers, body: payload, signal };
      const answer = await fetch(`${API}/chat/responses`, request);
      return answer.ok ? titleFrom(textOf(await answer.json())) : null;
    } catch {
      return null; // the first words of the question stay the title
    }
  }
}

async function isIdle() {
  try {
    const answer = await fetch(`${API}/live?since=${Math.floor(Date.now() / 1000)}`);
    const { requests, loading } = await answer.json();
    return requests.length === 0 && loading.length === 0;
  } catch {
    return false;
  }
}

function textOf({ output }) {
  const parts = output.filter(({ type }) => type === "message").flatMap(({ content }) => content);
  return parts.map(({ text = "" }) => text).join("");
}
