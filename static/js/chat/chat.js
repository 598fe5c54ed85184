// The chat page: conversations of this browser with the models of this server.

import "../app.js";

import { announce } from "../announce.js";
import { confirmed } from "../confirm.js";
import { t } from "../text.js";
import { runningAnswer } from "./answer.js";
import { copy } from "./answer-view.js";
import { Composer } from "./composer.js";
import { ContextMeter } from "./context-meter.js";
import { Conversation } from "./conversation.js";
import { show } from "./dom.js";
import { Drafts } from "./drafts.js";
import { exportAll, exportJson, exportMarkdown, importRecorded, importShown } from "./files.js";
import { Generation } from "./generation.js";
import { History } from "./history.js";
import { loadMarkdown } from "./markdown.js";
import { Models } from "./models.js";
import { askForModel, askToOrganise } from "./organise.js";
import { Picker } from "./picker.js";
import { SettingsPanel } from "./settings-panel.js";
import { Side } from "./sides.js";
import * as store from "./store.js";
import { Sync } from "./sync.js";
import { Titles } from "./titles.js";
import { Toolbox, ToolLoop } from "./toolbox.js";
import { isAtEnd, scrollToEnd, Turns } from "./turns.js";
import { newestLeaf, siblings } from "./tree.js";

class Chat extends HTMLElement {
  async connectedCallback() {
    if ("markdown" in this.dataset) await loadMarkdown();
    const part = (name) => this.querySelector(`[data-chat="${name}"]`);
    this.heading = this.querySelector("h1");
    this.newest = part("newest");
    this.models = new Models(this.dataset.model);
    new Picker(part("picker"), this.models);
    this.composer = new Composer(part("composer"), this.models);
    this.settings = new SettingsPanel(part("settings").querySelector("form"), this.models);
    this.history = new History(part("history"));
    this.turns = new Turns(part("turns"), part("log"));
    this.meter = new ContextMeter(part("meter"), part("context"), this.models);
    this.generation = new Generation(this);
    this.titles = new Titles(part("titles"), () => !this.composer.busy);
    this.drafts = new Drafts(this.composer);
    this.toolbox = new Toolbox(part("tools"), this.querySelector("[data-action=ask-again]"));
    this.loop = new ToolLoop(this.toolbox, {
      changed: (message) => this.#drawn(message),
      answer: ({ id, conversation }) =>
        conversation === this.conversation.id && this.generation.answer(id),
    });
    this.sides = [
      new Side(part("history"), part("open-history"), true),
      new Side(part("settings"), part("open-settings"), false),
    ];
    this.#listen(part("file"));
    show(part("unkept"), store.isKept ? "" : t("ui.chat.unkept"));
    store.onFull(() => show(part("unkept"), t("ui.chat.full")));
    let problem = "";
    const recorded = await importRecorded().catch(({ message }) => {
      problem = message;
    });
    await this.open(recorded ?? location.hash.slice(1));
    if (problem) this.composer.fail(problem);
    this.toggleAttribute("data-ready", true);
    if ("stored" in this.dataset) new Sync((problem) => show(part("unsent"), problem)).start();
    this.models.load();
  }

  #listen(file) {
    this.addEventListener("click", ({ target }) => {
      if (target.closest(".conversation-link")) this.sides[0].leave();
      const button = target.closest("[data-action]");
      if (button && button.getAttribute("aria-disabled") !== "true") this.act(button);
    });
    this.addEventListener("submit", (event) => this.#submit(event));
    this.composer.addEventListener("ask", ({ detail }) => this.ask(detail));
    this.composer.addEventListener("stop", () => this.generation.stop());
    this.composer.addEventListener("typed", ({ detail }) => this.meter.type(detail));
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
    if (event.key === "Escape" && !event.isComposing) this.#escape(event);
  }

  // Of what Escape may end, the innermost. Dialogs, menus and popovers close by themselves.
  #escape({ target }) {
    if (document.querySelector("dialog[open], :popover-open, omlx-menu details[open]")) return;
    const edited = target.closest("[data-edit]")?.closest("[data-id]").dataset.id;
    const settings = this.sides[1];
    if (edited) this.turns.view(edited).cancel();
    else if (settings.isOpen && settings.panel.contains(target)) settings.close();
    else if (this.composer.busy) this.composer.stop();
    else if (settings.isOpen) settings.close();
  }

  #editLast(event) {
    const last = this.conversation.path.findLast(({ role }) => role === "user");
    if (!last || this.composer.busy) return;
    event.preventDefault();
    this.turns.view(last.id).edit();
  }

  // Show the conversation of an address, `id` or `id/message`, or a new one.
  async open(address) {
    const [id, message] = address.split("/");
    if (id && id === this.conversation?.id) return this.#reveal(message);
    const focused = document.activeElement;
    const known = id ? await Conversation.open(id) : null;
    if (id && known === null) announce(t("ui.chat.gone"));
    this.conversation = known ?? Conversation.begin(SettingsPanel.last());
    const { settings } = this.conversation.head;
    await this.drafts.show(this.conversation);
    this.settings.show({ ...settings, model: settings.model || this.dataset.model });
    this.generation.takeUp();
    this.render();
    await this.history.show(this.conversation.id);
    if (message) return this.#reveal(message);
    scrollToEnd();
    // Whoever moved on with Tab meanwhile keeps the focus.
    const moved = document.activeElement;
    if (moved === focused || moved === document.body) this.composer.focus();
  }

  // Show the branch with a message, and the message.
  async #reveal(id) {
    const { conversation } = this;
    if (!conversation.get(id)) return;
    if (!this.turns.get(id)) {
      conversation.head.leaf = newestLeaf(conversation.messages, id);
      await conversation.saveHead();
      this.render();
    }
    const { element } = this.turns.get(id);
    element.scrollIntoView({ block: "center", behavior: "instant" });
    requestAnimationFrame(() => element.scrollIntoView({ block: "center", behavior: "instant" }));
    element.focus({ preventScroll: true });
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
    this.composer.isBusy = this.generation.running !== undefined;
    this.meter.show(conversation.path);
    this.#scrolled();
  }

  #scrolled() {
    this.newest.hidden = isAtEnd();
  }

  // `keeps`: what is typed in the composer is not the question.
  async ask({ text, files, parent = this.conversation.head.leaf, keeps = false }) {
    if (this.sending) return;
    this.sending = true;
    const canSend = await this.#canSend();
    this.sending = false;
    if (!canSend) return;
    const { conversation } = this;
    if (conversation.isEmpty) {
      conversation.head.settings = this.settings.values;
      history.pushState(null, "", `#${conversation.id}`);
    }
    const question = await conversation.addQuestion(text, files, parent);
    if (!keeps) this.composer.clear();
    this.drafts.move(conversation);
    await this.generation.answer(question.id);
    this.history.show(conversation.id);
  }

  // Whether the settings can be sent, and their tools are there; else show why not.
  async #canSend() {
    if (!this.settings.isValid) {
      this.sides[1].open();
      this.settings.showProblem();
      return false;
    }
    return this.loadTools();
  }

  // Whether the tools of the conversation are there; else show why not.
  async loadTools() {
    const problem = await this.toolbox.load(this.settings.values.tools);
    if (problem) this.composer.fail(problem);
    return !problem;
  }

  // For `Generation`: an answer has ended.
  ended(message) {
    if (this.conversation.id !== message.conversation) return;
    this.turns.changed(message);
    this.render();
    this.loop.ended(message, this.conversation.path);
    if (!this.composer.busy) this.composer.free(message.status === "done");
    if (message.status === "done" && !message.twin) this.#entitle();
    const ends = { failed: "ui.chat.failed", lost: "ui.chat.lost", stopped: "ui.chat.stopped" };
    if (message.status in ends) announce(t(ends[message.status]));
  }

  #drawn(message) {
    if (this.conversation.id === message.conversation) this.turns.changed(message);
  }

  async #entitle() {
    const { conversation } = this;
    if (!("titles" in this.dataset)) return;
    if (!(await this.titles.entitle(conversation, this.models.thinks))) return;
    if (this.conversation === conversation) this.heading.textContent = conversation.head.title;
    this.history.show(this.conversation.id);
  }

  // Ask for title, folder and pin of a conversation.
  async #organise(id) {
    const head = (await store.conversations()).find((each) => each.id === id);
    if (!head) return;
    const fields = await askToOrganise(head);
    if (!fields) return;
    if (id === this.conversation.id) await this.conversation.organise(fields);
    else await store.changeConversation(id, fields);
    this.heading.textContent = this.conversation.head.title || t("ui.chat.new");
    await this.history.show(this.conversation.id);
  }

  keepSettings() {
    this.conversation.head.settings = this.settings.values;
    this.conversation.saveHead();
    this.loadTools();
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
      organise: () => this.#organise(id ?? conversation.id),
      "ask-again": () => this.toolbox.askAgain(),
      delete: () => this.delete(conversation.id),
      "delete-other": () => this.delete(id),
      "delete-all": () => this.deleteAll(),
    };
  }

  #turnActions(message, button) {
    const { parent } = message;
    const call = button.closest("[data-call]")?.dataset.call;
    return {
      "call-once": () => this.loop.decide(message, call, "once"),
      "call-always": () => this.loop.decide(message, call, "always"),
      "call-refuse": () => this.loop.decide(message, call, "refuse"),
      copy: () => copy(message.text, button),
      edit: () => this.turns.view(message.id).edit(),
      cancel: () => this.turns.view(message.id).cancel(),
      tint: () => this.turns.view(message.id).toggleTint(),
      continue: () => this.generation.goOn(message),
      plain: () => this.generation.beside(message),
      versus: () => this.#compare(message),
      unpair: () => this.#unpair(message),
      adopt: () => this.#adopt(message),
      regenerate: () => this.generation.answer(parent),
      retry: () => this.generation.retry(message),
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

  // Show another model's answer to the same question, chosen in a dialog.
  async #compare(message) {
    const others = [...this.models.known.keys()].filter((id) => id !== message.model);
    const model = await askForModel(others);
    if (!model) return;
    const settings = { model };
    await this.generation.beside(message, { settings, versus: true });
  }

  async #unpair(twin) {
    const button = this.turns.view(twin.twin).button("versus");
    await this.conversation.dropTwin(twin);
    this.render();
    button.focus();
  }

  async #adopt(twin) {
    await this.conversation.adoptTwin(twin);
    this.render();
    this.turns.view(twin.id).button("edit").focus();
  }

  // A changed question is asked, a changed answer is kept, each as a branch.
  async #submit(event) {
    const id = event.target.closest("[data-id]")?.dataset.id;
    const message = this.conversation.get(id);
    if (!message) return;
    event.preventDefault();
    const text = event.target.elements.text.value.trim();
    if (this.composer.busy || !(text || message.images?.length)) return;
    this.turns.view(id).cancel();
    if (message.role === "user") {
      const { images: files = [], parent } = message;
      await this.ask({ text, files, parent, keeps: true });
      this.composer.focus();
    } else if (text !== message.text) {
      const edited = await this.conversation.addEdited(message, text);
      this.render();
      this.turns.view(edited.id).button("edit").focus();
    }
  }

  async import(input) {
    const part = (name) => this.querySelector(`[data-chat=${name}]`);
    const first = await importShown([...input.files], part("imported"), part("import-problem"));
    if (first) location.hash = first.id;
    input.value = "";
    this.history.show(this.conversation.id);
  }

  async delete(id) {
    if (!(await confirmed("delete"))) return;
    if (id === this.conversation.id) this.#leave();
    await store.remove(id);
    announce(t("ui.chat.deleted"));
    if (id === this.conversation.id) await this.begin();
    else await this.history.show(this.conversation.id);
  }

  async deleteAll() {
    const all = await store.conversations();
    const isStored = "stored" in this.dataset;
    const key = isStored ? "ui.chat.delete_all.question.stored" : "ui.chat.delete_all.question";
    const question = t(key, { count: all.length });
    if (!(await confirmed("delete-all", question))) return;
    this.#leave();
    await store.removeAll();
    announce(t("ui.chat.deleted"));
    await this.begin();
  }

  // Stop what is generated for a conversation that goes.
  #leave() {
    for (const { id } of this.conversation.messages.values()) runningAnswer(id)?.stop();
  }

  async #changedElsewhere({ conversation, conversations = [conversation], all }) {
    const shown = this.conversation;
    if (all || conversations.includes(shown.id)) {
      const isThere = await shown.reload((id) => runningAnswer(id) !== undefined);
      if (!isThere && !shown.isEmpty) return this.begin();
      this.generation.takeUp();
      this.render();
    }
    return this.history.show(this.conversation.id);
  }
}

customElements.define("omlx-chat", Chat);
