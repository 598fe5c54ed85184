// The chat page: conversations of this browser with the models of this server.

import "../app.js";

import { announce } from "../announce.js";
import { confirmed } from "../confirm.js";
import { t } from "../text.js";
import { Answer, isBeingStarted, runningAnswer } from "./answer.js";
import { copy } from "./answer-view.js";
import { Composer } from "./composer.js";
import { ContextMeter } from "./context-meter.js";
import { Conversation } from "./conversation.js";
import { dialog, show } from "./dom.js";
import { exportAll, exportJson, exportMarkdown, importFiles } from "./files.js";
import { History } from "./history.js";
import { loadMarkdown } from "./markdown.js";
import { Models } from "./models.js";
import { drawSeed, requestBody } from "./request.js";
import { SettingsPanel } from "./settings-panel.js";
import { Side } from "./sides.js";
import * as store from "./store.js";
import { isAtEnd, scrollToEnd, Turns } from "./turns.js";
import { path, siblings, twinOf } from "./tree.js";

class Chat extends HTMLElement {
  async connectedCallback() {
    if ("markdown" in this.dataset) await loadMarkdown();
    const part = (name) => this.querySelector(`[data-chat="${name}"]`);
    this.heading = this.querySelector("h1");
    this.newest = part("newest");
    this.models = new Models(this.querySelector("#chat-model"));
    this.composer = new Composer(part("composer"), this.models);
    this.settings = new SettingsPanel(part("settings").querySelector("form"), this.models);
    this.history = new History(part("history"));
    this.turns = new Turns(part("turns"), part("log"));
    this.meter = new ContextMeter(part("meter"), part("context"), this.models);
    this.sides = [
      new Side(part("history"), part("open-history"), true),
      new Side(part("settings"), part("open-settings"), false),
    ];
    this.#listen(part("file"));
    part("unkept").hidden = store.isKept;
    await this.open(location.hash.slice(1));
    this.toggleAttribute("data-ready", true);
    this.models.load().catch(() => {});
  }

  #listen(file) {
    this.addEventListener("click", ({ target }) => {
      const button = target.closest("[data-action]");
      if (button && button.getAttribute("aria-disabled") !== "true") this.act(button);
    });
    this.addEventListener("submit", (event) => this.#submit(event));
    this.composer.addEventListener("ask", ({ detail }) => this.ask(detail));
    this.composer.addEventListener("stop", () => this.stop());
    this.settings.addEventListener("change", () => this.keepSettings());
    file.addEventListener("change", ({ target }) => this.import(target));
    addEventListener("hashchange", () => this.open(location.hash.slice(1)));
    addEventListener("scroll", () => this.#scrolled(), { passive: true });
    document.addEventListener("keydown", (event) => this.#key(event));
    store.onChange((change) => this.#changedElsewhere(change));
  }

  #key(event) {
    if ((event.metaKey || event.ctrlKey) && event.key === "k") {
      event.preventDefault();
      this.begin();
    }
    const { field } = this.composer;
    if (event.key === "ArrowUp" && event.target === field && !field.value) this.#editLast(event);
  }

  #editLast(event) {
    const last = this.conversation.path.findLast(({ role }) => role === "user");
    if (!last || this.composer.busy) return;
    event.preventDefault();
    this.turns.view(last.id).edit();
  }

  // Show the conversation of an id, or a new one.
  async open(id) {
    if (id && id === this.conversation?.id) return;
    const focused = document.activeElement;
    const known = id ? await Conversation.open(id) : null;
    if (id && known === null) announce(t("ui.chat.gone"));
    this.conversation = known ?? Conversation.begin(SettingsPanel.last());
    const { settings } = this.conversation.head;
    this.settings.show({ ...settings, model: settings.model || this.dataset.model });
    this.takeUp();
    this.render();
    await this.history.show(this.conversation.id);
    scrollToEnd();
    // Whoever moved on with Tab meanwhile keeps the focus.
    const moved = document.activeElement;
    if (moved === focused || moved === document.body) this.composer.focus();
  }

  begin() {
    this.sides.forEach((side) => side.leave());
    history.pushState(null, "", location.pathname);
    return this.open("");
  }

  render() {
    const { conversation } = this;
    this.heading.textContent = conversation.head.title || t("ui.chat.new");
    this.toggleAttribute("data-empty", conversation.isEmpty);
    this.turns.show(conversation);
    this.composer.isBusy = this.running !== undefined;
    this.meter.show(conversation.path);
    this.#scrolled();
  }

  #scrolled() {
    this.newest.hidden = isAtEnd();
  }

  // The answer on the page that is being generated.
  get running() {
    const answers = this.conversation.path.flatMap(({ id }) => [
      runningAnswer(id),
      runningAnswer(twinOf(this.conversation.messages, id)?.id),
    ]);
    return answers.find((answer) => answer !== undefined);
  }

  async ask({ text, pictures, parent = this.conversation.head.leaf }) {
    if (!this.#canSend()) return;
    const { conversation } = this;
    if (conversation.isEmpty) {
      conversation.head.settings = this.settings.values;
      history.pushState(null, "", `#${conversation.id}`);
    }
    const question = await conversation.addQuestion(text, pictures, parent);
    this.composer.clear();
    await this.answer(question.id);
    this.history.show(conversation.id);
  }

  // Whether the settings can be sent; else show the one at fault.
  #canSend() {
    if (this.settings.isValid) return true;
    this.sides[1].open();
    this.settings.showProblem();
    return false;
  }

  // Answer a question: a new branch, or an answer beside another one.
  async answer(question, fields = {}) {
    const settings = { ...this.settings.values, ...fields.settings };
    const seed = fields.seed ?? (settings.seed === "" ? drawSeed() : Number(settings.seed));
    const { conversation } = this;
    const answer = await conversation.addAnswer(question, {
      ...fields,
      model: settings.model,
      settings,
      seed,
    });
    await this.generate(conversation, answer);
  }

  async generate(conversation, message) {
    const turns = path(conversation.messages, message.parent);
    const images = await conversation.dataURIs(turns);
    const { settings, seed, twin } = message;
    const body = requestBody(turns, settings, { seed, images, plain: twin !== undefined });
    this.follow(message, (answer) => answer.start(body));
    scrollToEnd();
  }

  // Follow answers that another page has begun: this one before it was reloaded, another window.
  async takeUp() {
    for (const message of this.conversation.messages.values()) {
      if (message.status !== "running" || runningAnswer(message.id)) continue;
      if (message.response) this.follow(message, (answer) => answer.resume());
      else if (!(await isBeingStarted(message.id))) this.retry(message);
    }
  }

  follow(message, begin) {
    const answer = new Answer(message);
    let due = false;
    answer.addEventListener("changed", () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        this.#changed(message);
      });
    });
    begin(answer).then(() => this.#ended(message));
    if (this.conversation.id === message.conversation) this.render();
  }

  // Its end is drawn by `#ended`, with the composer that is free again: keys work once it shows.
  #changed(message) {
    const isShown = this.conversation.id === message.conversation;
    if (isShown && message.status === "running") this.turns.changed(message);
  }

  #ended(message) {
    if (this.conversation.id !== message.conversation) return;
    this.turns.changed(message);
    this.render();
    const ends = { failed: "ui.chat.failed", lost: "ui.chat.lost", stopped: "ui.chat.stopped" };
    if (message.status in ends) announce(t(ends[message.status]));
  }

  stop() {
    this.running?.stop();
  }

  async retry(message) {
    const answer = runningAnswer(message.id);
    if (answer) return answer.retry();
    const { conversation } = this;
    await conversation.begin(message);
    return this.generate(conversation, message);
  }

  keepSettings() {
    this.conversation.head.settings = this.settings.values;
    this.conversation.saveHead();
    this.meter.show(this.conversation.path);
  }

  act(button) {
    const { action } = button.dataset;
    const id = button.closest("[data-id]")?.dataset.id;
    const message = this.conversation.get(id);
    const ofTurn = message ? this.#turnActions(message, button) : {};
    const actions = { ...this.#pageActions(id), ...ofTurn };
    actions[action]?.();
    button.closest("omlx-menu details")?.removeAttribute("open");
  }

  #pageActions(id) {
    const { conversation } = this;
    return {
      new: () => this.begin(),
      newest: () => scrollToEnd(),
      import: () => this.querySelector("[data-chat=file]").click(),
      "export-all": () => exportAll(),
      "export-markdown": () => exportMarkdown(conversation),
      "export-json": () => exportJson(conversation),
      delete: () => this.delete(conversation.id),
      "delete-other": () => this.delete(id),
      "delete-all": () => this.deleteAll(),
    };
  }

  #turnActions(message, button) {
    const { parent } = message;
    const plain = { seed: message.seed, settings: message.settings, twin: message.id };
    return {
      copy: () => copy(message.text, button),
      edit: () => this.turns.view(message.id).edit(),
      cancel: () => this.turns.view(message.id).cancel(),
      tint: () => this.turns.view(message.id).toggleTint(),
      plain: () => this.answer(parent, plain),
      regenerate: () => this.answer(parent),
      retry: () => this.retry(message),
      before: () => this.#branch(message, -1),
      after: () => this.#branch(message, 1),
    };
  }

  async #branch(message, step) {
    const branches = siblings(this.conversation.messages, message);
    const next = branches[branches.indexOf(message) + step];
    await this.conversation.select(next.id);
    this.render();
    const arrow = step < 0 ? "before" : "after";
    this.turns.get(next.id).element.querySelector(`[data-action="${arrow}"]`).focus();
  }

  async #submit(event) {
    const id = event.target.closest("[data-id]")?.dataset.id;
    const question = this.conversation.get(id);
    if (!question) return;
    event.preventDefault();
    const text = event.target.elements.text.value.trim();
    if (this.composer.busy || !(text || question.images?.length)) return;
    this.turns.view(id).cancel();
    await this.ask({ text, pictures: question.images ?? [], parent: question.parent });
    this.composer.focus();
  }

  async import({ files }) {
    const problem = this.querySelector("[data-chat=import-problem]");
    show(problem, "");
    try {
      const heads = await importFiles([...files]);
      announce(t("ui.chat.imported", { count: heads.length }));
      if (heads.length) location.hash = heads[0].id;
    } catch (error) {
      show(problem, t("ui.chat.import.failed", { reason: error.message }));
    }
    this.querySelector("[data-chat=file]").value = "";
    this.history.show(this.conversation.id);
  }

  async delete(id) {
    if (!(await confirmed(dialog("delete")))) return;
    if (id === this.conversation.id) this.#leave();
    await store.remove(id);
    announce(t("ui.chat.deleted"));
    if (id === this.conversation.id) await this.begin();
    else await this.history.show(this.conversation.id);
  }

  async deleteAll() {
    const all = await store.conversations();
    const question = t("ui.chat.delete_all.question", { count: all.length });
    if (!(await confirmed(dialog("delete-all"), question))) return;
    this.#leave();
    await store.removeAll();
    announce(t("ui.chat.deleted"));
    await this.begin();
  }

  // Stop what is generated for a conversation that goes.
  #leave() {
    for (const { id } of this.conversation.messages.values()) runningAnswer(id)?.stop();
  }

  async #changedElsewhere({ conversation, all }) {
    const shown = this.conversation;
    if (all || conversation === shown.id) {
      const isThere = await shown.reload((id) => runningAnswer(id) !== undefined);
      if (!isThere && !shown.isEmpty) return this.begin();
      this.takeUp();
      this.render();
    }
    return this.history.show(this.conversation.id);
  }
}

customElements.define("omlx-chat", Chat);
