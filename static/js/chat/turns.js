// The turns of the shown branch, from the first question to the newest answer. Turns that stay are
// kept as they are, with their focus and selection.

import { t } from "../text.js";
import { AnswerView, verdict } from "./answer-view.js";
import { fromTemplate, show } from "./dom.js";
import { QuestionView } from "./question-view.js";
import { Sentences } from "./speech.js";
import { childrenOf, siblings, twinOf } from "./tree.js";

const NEAR = 96; // pixels from the end that count as the end
const SPOKEN = 6; // sentences that stay in the live region

export class Turns {
  constructor(element, log) {
    this.element = element;
    this.log = log;
    this.turns = new Map(); // by id of the question or answer
  }

  // Show a conversation's branch.
  show(conversation) {
    if (this.conversation !== conversation) this.#clear();
    this.conversation = conversation;
    const branch = conversation.path;
    const wanted = new Set(branch.map(({ id }) => id));
    for (const [id, turn] of this.turns) {
      if (wanted.has(id)) continue;
      turn.remove();
      this.turns.delete(id);
    }
    let place = this.element.firstElementChild;
    for (const message of branch) {
      if (!this.turns.has(message.id)) this.turns.set(message.id, new Turn(message, conversation));
      const turn = this.turns.get(message.id);
      turn.update();
      if (turn.element === place) place = place.nextElementSibling;
      else this.element.insertBefore(turn.element, place); // moving it would take its focus away
    }
  }

  get(id) {
    return this.turns.get(id);
  }

  // The view of a question or an answer, also of one beside another.
  view(id) {
    const views = [...this.turns.values()].flatMap((turn) => turn.views);
    return views.find(({ message }) => message.id === id);
  }

  // The server has sent more of an answer, or has ended it.
  changed(message) {
    const turn = this.turns.get(message.twin ?? message.id);
    if (!turn) return;
    const follows = isAtEnd() && !message.twin;
    turn.update();
    this.#speak(turn, message);
    if (follows) scrollToEnd();
  }

  #clear() {
    this.turns.forEach((turn) => turn.remove());
    this.turns.clear();
    this.log.replaceChildren();
  }

  #speak(turn, message) {
    turn.sentences ??= new Sentences();
    const text = turn.sentences.read(message.text, { whole: message.status !== "running" });
    if (!text) return;
    this.log.append(Object.assign(document.createElement("p"), { textContent: text }));
    while (this.log.childElementCount > SPOKEN) this.log.firstElementChild.remove();
  }
}

export function isAtEnd() {
  return scrollY + innerHeight >= document.scrollingElement.scrollHeight - NEAR;
}

export function scrollToEnd() {
  scrollTo({ top: document.scrollingElement.scrollHeight, behavior: "instant" });
}

// A question, or an answer with one beside it.
class Turn {
  constructor(message, conversation) {
    this.message = message;
    this.conversation = conversation;
    this.element = fromTemplate("turn");
    this.element.id = `turn-${message.id}`;
    this.element.classList.add(`turn-${message.role}`);
    this.sides = this.element.querySelector("[data-sides]");
    const isQuestion = message.role === "user";
    const view = isQuestion ? new QuestionView(message, conversation) : new AnswerView(message);
    this.element.setAttribute("aria-label", isQuestion ? t("ui.chat.you") : t("ui.chat.answer"));
    this.views = [view];
    this.sides.append(view.element);
  }

  update() {
    this.#pair();
    this.views.forEach((view) => view.update());
    if (this.message.role === "assistant") this.#offer();
    this.#branches();
  }

  remove() {
    this.views.forEach((view) => view.remove());
    this.element.remove();
  }

  #pair() {
    const [view, beside] = this.views;
    const twin = twinOf(this.conversation.messages, this.message.id);
    if (beside && beside.message !== twin) {
      beside.remove();
      this.views.length = 1;
      if (!twin) view.label("");
    }
    if (twin && this.views.length === 1) {
      this.views.push(new AnswerView(twin));
      this.sides.append(this.views[1].element);
      view.label(twin.versus ? "" : t("ui.chat.with_drafts"));
      this.views[1].label(twin.versus ? "" : t("ui.chat.without_drafts"));
    }
    this.element.classList.toggle("turn-pair", twin !== undefined);
    const told = twin ? verdict(this.message, twin) : "";
    show(this.element.querySelector("[data-verdict]"), told);
  }

  // What can be done with an answer depends on those around it.
  #offer() {
    const [view, beside] = this.views;
    view.isLast = childrenOf(this.conversation.messages, this.message.id).length === 0;
    view.isPaired = beside !== undefined;
  }

  // Which of the branches this is, and the way to the others.
  #branches() {
    const branches = siblings(this.conversation.messages, this.message);
    const place = this.views[0].element.querySelector("[data-branches]");
    place.hidden = branches.length < 2;
    if (place.hidden) return;
    const number = branches.indexOf(this.message) + 1;
    place.querySelector("[data-number]").textContent = `${number} / ${branches.length}`;
    const [before, after] = place.querySelectorAll("button");
    before.setAttribute("aria-disabled", String(number === 1));
    after.setAttribute("aria-disabled", String(number === branches.length));
  }
}
