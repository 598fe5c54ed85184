// The list of conversations: pinned ones, folders, the others; with search in titles and texts.

import { t } from "../text.js";
import { fromTemplate, show } from "./dom.js";
import { SearchIndex } from "./search.js";
import * as store from "./store.js";

const DAY_MS = 86_400_000;
const TYPING_MS = 50;
const SETTLED_MS = 2000; // the page is in use by now, and the first search should not wait
const CLOSED = "omlx-chat-closed-folders";

export class History {
  constructor(element) {
    this.list = element.querySelector("[data-list]");
    this.search = element.querySelector("input[type=search]");
    this.status = element.querySelector("[data-found]");
    this.empty = element.querySelector("[data-none]");
    this.index = new SearchIndex(store);
    this.folders = new Map(); // their elements by name
    this.search.addEventListener("focus", () => this.index.ready());
    setTimeout(() => this.index.ready(), SETTLED_MS);
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(this.shown), TYPING_MS);
    });
    store.onChange((change) => this.index.changed(change), { own: true });
  }

  // List them; `shown` is the id of the open one.
  async show(shown) {
    this.shown = shown;
    const all = await store.conversations();
    const sought = this.search.value.trim();
    const hits = await this.#hits(sought);
    const isFound = ({ id, title }) => hits.has(id) || title.toLowerCase().includes(sought.toLowerCase());
    const found = sought ? all.filter(isFound) : all;
    this.empty.hidden = all.length > 0;
    show(this.status, sought ? t("ui.chat.found", { count: found.length }) : "");
    const known = new Map();
    for (const item of this.list.querySelectorAll("[data-id]")) known.set(item.dataset.id, item);
    const itemOf = (head) => filled(known.get(head.id) ?? newItem(head.id), head, shown, hits.get(head.id));
    const focused = document.activeElement;
    this.list.replaceChildren(...(sought ? [listOf(found.map(itemOf))] : this.#groups(found, itemOf)));
    if (this.list.contains(focused)) focused.focus({ preventScroll: true });
  }

  // All folders in use, in order.
  static async folders() {
    return foldersOf(await store.conversations());
  }

  async #hits(sought) {
    if (!sought) return new Map();
    await this.index.ready();
    return this.index.find(sought);
  }

  #groups(heads, itemOf) {
    const pinned = heads.filter((head) => head.pinned);
    const others = heads.filter((head) => !head.pinned);
    const folders = foldersOf(others).map((name) => {
      const inside = others.filter(({ folder }) => folder === name);
      return this.#folder(name, inside.map(itemOf), inside.some(({ id }) => id === this.shown));
    });
    const loose = others.filter(({ folder }) => !folder);
    return [listOf(pinned.map(itemOf)), ...folders, listOf(loose.map(itemOf))];
  }

  #folder(name, items, isShown) {
    if (!this.folders.has(name)) {
      const element = fromTemplate("folder");
      element.querySelector("[data-name]").textContent = name;
      element.open = !closedFolders().includes(name);
      element.addEventListener("toggle", () => keepClosed(name, !element.open));
      this.folders.set(name, element);
    }
    const element = this.folders.get(name);
    if (isShown) element.open = true;
    element.querySelector("[data-count]").textContent = items.length;
    element.querySelector("ul").replaceChildren(...items);
    return element;
  }
}

function foldersOf(heads) {
  const names = new Set(heads.map(({ folder }) => folder).filter(Boolean));
  return [...names].sort((one, other) => one.localeCompare(other));
}

function closedFolders() {
  return JSON.parse(localStorage.getItem(CLOSED) ?? "[]");
}

function keepClosed(name, isClosed) {
  const others = closedFolders().filter((each) => each !== name);
  localStorage.setItem(CLOSED, JSON.stringify(isClosed ? [...others, name] : others));
}

function listOf(items) {
  const list = document.createElement("ul");
  list.className = "conversations";
  list.append(...items);
  return list;
}

function newItem(id) {
  const item = fromTemplate("conversation");
  item.dataset.id = id;
  return item;
}

function filled(item, { id, title, updated, pinned }, shown, hit) {
  const link = item.querySelector("a");
  link.href = hit ? `#${id}/${hit.message}` : `#${id}`;
  link.querySelector("[data-title]").textContent = title || t("ui.chat.untitled");
  link.querySelector("[data-time]").textContent = timeOf(updated);
  link.querySelector("[data-pinned]").hidden = !pinned;
  const excerpt = link.querySelector("[data-excerpt]");
  excerpt.hidden = !hit;
  if (hit) {
    const mark = Object.assign(document.createElement("mark"), { textContent: hit.hit });
    excerpt.replaceChildren(hit.before, mark, hit.after);
  }
  if (id === shown) link.setAttribute("aria-current", "true");
  else link.removeAttribute("aria-current");
  name(item, "delete-other", t("ui.chat.delete"), t("ui.chat.delete.named", { title }));
  name(item, "organise", t("ui.chat.organise"), t("ui.chat.organise.named", { title }));
  return item;
}

function name(item, action, title, full) {
  const button = item.querySelector(`[data-action="${action}"]`);
  button.title = title;
  button.querySelector("span").textContent = full;
}

// Today's by the clock, older ones by date.
function timeOf(at) {
  const isRecent = Date.now() - at < DAY_MS;
  return (isRecent ? clock : calendar).format(at);
}

const { lang } = document.documentElement;
const clock = new Intl.DateTimeFormat(lang, { timeStyle: "short" });
const calendar = new Intl.DateTimeFormat(lang, { dateStyle: "medium" });
