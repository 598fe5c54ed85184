// The list of conversations, with search in titles and texts.

import { t } from "../text.js";
import { fromTemplate } from "./dom.js";
import * as store from "./store.js";

const DAY_MS = 86_400_000;
const TYPING_MS = 150;

export class History {
  constructor(element) {
    this.list = element.querySelector("[data-list]");
    this.search = element.querySelector("input[type=search]");
    this.status = element.querySelector("[data-found]");
    this.empty = element.querySelector("[data-none]");
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(this.shown), TYPING_MS);
    });
  }

  // List them; `shown` is the id of the open one.
  async show(shown) {
    this.shown = shown;
    const all = await store.conversations();
    const found = await matching(all, this.search.value.trim().toLowerCase());
    this.empty.hidden = all.length > 0;
    const searches = this.search.value.trim() !== "";
    this.status.textContent = searches ? t("ui.chat.found", { count: found.length }) : "";
    const known = new Map([...this.list.children].map((item) => [item.dataset.id, item]));
    const items = found.map((head) => filled(known.get(head.id) ?? newItem(head.id), head, shown));
    const focused = document.activeElement;
    this.list.replaceChildren(...items);
    if (this.list.contains(focused)) focused.focus({ preventScroll: true });
  }
}

async function matching(all, sought) {
  if (!sought) return all;
  const hits = new Set();
  for (const { conversation, text } of await store.allMessages()) {
    if (text.toLowerCase().includes(sought)) hits.add(conversation);
  }
  return all.filter(({ id, title }) => hits.has(id) || title.toLowerCase().includes(sought));
}

function newItem(id) {
  const item = fromTemplate("conversation");
  item.dataset.id = id;
  item.querySelector("a").href = `#${id}`;
  return item;
}

function filled(item, { id, title, updated }, shown) {
  const link = item.querySelector("a");
  link.querySelector("[data-title]").textContent = title || t("ui.chat.untitled");
  link.querySelector("[data-time]").textContent = timeOf(updated);
  if (id === shown) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  const button = item.querySelector("button");
  button.title = t("ui.chat.delete");
  button.querySelector("span").textContent = t("ui.chat.delete.named", { title });
  return item;
}

// Today's by the clock, older ones by date.
function timeOf(at) {
  const { lang } = document.documentElement;
  const isRecent = Date.now() - at < DAY_MS;
  const format = isRecent ? { timeStyle: "short" } : { dateStyle: "medium" };
  return new Intl.DateTimeFormat(lang, format).format(at);
}
