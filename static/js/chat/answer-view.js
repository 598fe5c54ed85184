// An answer on the page: reasoning, text, state, figures. `omlx-chat` handles its buttons.

import { announce } from "../announce.js";
import { known, t } from "../text.js";
import { isLoggedOut } from "../session.js";
import { runningAnswer } from "./answer.js";
import { isContinuable, thinkingSeconds } from "./answer-events.js";
import { CallsView } from "./calls-view.js";
import { fromTemplate, show } from "./dom.js";
import { EditForm } from "./edit-form.js";
import { comparison, duration, figuresOf, seconds, summaryOf, undrafted } from "./figures.js";
import { Prose } from "./markdown.js";
import { canPreview, togglePreview } from "./preview.js";
import { canTint, tint } from "./tint.js";

const COPIED_MS = 2000;
// Codes of OpenAI's API, by which the catalog knows the same errors.
const CODES = { context_length_exceeded: "ui.chat.too_long", model_not_found: "model.not_found" };

export class AnswerView {
  constructor(message) {
    this.message = message;
    this.element = fromTemplate("answer");
    this.element.dataset.id = message.id;
    this.parts = {};
    for (const part of this.element.querySelectorAll("[data-part]")) {
      this.parts[part.dataset.part] = part;
    }
    this.prose = new Prose(this.parts.text, addCodeBar);
    this.reasoning = new Prose(this.parts.reasoning, addCodeBar);
    this.form = new EditForm(this.element);
    this.calls = new CallsView(this.parts.calls);
    this.update();
  }

  update() {
    const { message } = this;
    const answer = runningAnswer(message.id);
    this.element.dataset.status = message.status;
    this.element.setAttribute("aria-busy", String(message.status === "running"));
    this.parts.model.textContent = message.model;
    this.#think();
    this.prose.update(message.text);
    this.calls.show(message.calls);
    this.#progress(answer);
    this.#problem(answer);
    const ended = message.status !== "running";
    show(this.parts.note, ended ? noteOf(message) : "");
    this.#warn();
    this.#figures(ended);
    this.parts.actions.hidden = !ended;
    const isTwin = message.twin !== undefined;
    for (const action of ["regenerate", "edit"]) this.button(action).hidden = isTwin;
    if (isTwin) this.isPaired = true;
    this.button("unpair").hidden = !isTwin;
    this.button("adopt").hidden = !message.versus;
    this.button("tint").hidden = !(ended && canTint && message.drafted.length);
    if (this.untint) this.#paint();
  }

  button(action) {
    return this.element.querySelector(`[data-action="${action}"]`);
  }

  // An answer that others follow is not continued: they would no longer fit.
  set isLast(isLast) {
    const { status, twin } = this.message;
    const continues = isLast && status !== "running" && !twin && isContinuable(this.message);
    this.button("continue").hidden = !continues;
    const { problem, actions } = this.parts;
    const place = problem.hidden ? actions : problem;
    const button = this.button("continue");
    if (continues && button.parentElement !== place) place.append(button);
  }

  set isPaired(isPaired) {
    this.button("plain").hidden = isPaired || !this.message.timings?.draft_n;
    this.button("versus").hidden = isPaired;
  }

  edit() {
    this.form.open(this.message.text);
  }

  cancel() {
    this.form.close();
  }

  toggleTint() {
    const on = this.untint === undefined;
    this.button("tint").setAttribute("aria-pressed", String(on));
    this.parts.legend.hidden = !on;
    if (on) return this.#paint();
    this.untint();
    this.untint = undefined;
    return undefined;
  }

  // Show that this answer stands beside one of the same seed.
  label(text) {
    show(this.parts.label, text);
  }

  remove() {
    this.untint?.();
    this.element.remove();
  }

  #paint() {
    this.untint?.();
    this.untint = tint(this.prose.blocks, this.message.drafted);
  }

  #think() {
    const { message } = this;
    const { thinking, thought } = this.parts;
    thinking.hidden = !message.reasoning;
    if (!message.reasoning) return;
    this.reasoning.update(message.reasoning);
    const time = thinkingSeconds(message);
    const isOver = message.text || message.status !== "running";
    if (!isOver) show(thought, t("ui.chat.thinking"));
    else if (time === null) show(thought, t("ui.chat.thought"));
    else show(thought, t("ui.chat.thought_for", { time: seconds(time) }));
  }

  #progress(answer) {
    const { message } = this;
    const { progress, stage, bar } = this.parts;
    const waits = message.status === "running" && !message.text && !message.reasoning && !message.calls;
    progress.hidden = !(waits && answer?.isConnected !== false);
    if (progress.hidden) return;
    const { stage: name = "sent", share = null, left = null } = answer?.progress ?? {};
    const parts = [t(`ui.chat.stage.${name}`, { model: message.model })];
    if (left) parts.push(t("ui.try.left", { time: duration(left) }));
    show(stage, parts.join(" · "));
    bar.hidden = share === null;
    if (share !== null) bar.value = share;
  }

  #problem(answer) {
    const lost = answer?.isConnected === false;
    const { problem, sentence } = this.parts;
    const { status, error } = this.message;
    const isBad = lost || status === "failed" || status === "lost";
    problem.hidden = !isBad;
    if (!isBad) return;
    const away = isLoggedOut() ? "ui.chat.logged_out" : "ui.chat.disconnected";
    const text = t(lost ? away : "ui.chat.lost");
    show(sentence, status === "failed" ? errorText(error) : text);
  }

  #warn() {
    list(this.parts.warnings, (this.message.warnings ?? []).map(errorText));
  }

  #figures(ended) {
    show(this.parts.summary, ended ? summaryOf(this.message) : "");
    this.parts.details.hidden = this.parts.summary.hidden;
    list(this.parts.figures, ended ? figuresOf(this.message) : []);
    show(this.parts.undrafted, ended && !this.message.twin ? undrafted(this.message) : "");
  }
}

export function verdict(drafted, plain) {
  if (plain.versus) return "";
  const both = [drafted, plain].every(({ status }) => status === "done" || status === "stopped");
  return both ? comparison(drafted, plain) : "";
}

function list(element, texts) {
  const shown = [...element.children].map(({ textContent }) => textContent);
  if (texts.join("\n") === shown.join("\n")) return;
  const item = (textContent) => Object.assign(document.createElement("li"), { textContent });
  const items = texts.map(item);
  element.hidden = !items.length;
  element.replaceChildren(...items);
}

function noteOf({ status, cut, edited, twin }) {
  if (status === "stopped" && !twin) return t("ui.chat.stopped");
  if (edited && status === "done" && !cut) return t("ui.chat.edited");
  return cut ? t("ui.chat.cut") : "";
}

function errorText({ code, params, message }) {
  const key = CODES[code] ?? code;
  return known(key) ? t(key, params) : message;
}

// The language of a block of code, and a button that copies it.
function addCodeBar(pre, language) {
  const block = fromTemplate("code");
  pre.replaceWith(block);
  block.querySelector("[data-language]").textContent = language;
  block.append(pre);
  pre.tabIndex = 0; // it may scroll
  const button = (action) => block.querySelector(`[data-code="${action}"]`);
  button("copy")?.addEventListener("click", ({ currentTarget }) => {
    copy(pre.textContent, currentTarget);
  });
  button("preview").hidden = !canPreview(language);
  button("preview").addEventListener("click", ({ currentTarget }) => {
    togglePreview(block, language, currentTarget);
  });
}

export async function copy(text, button) {
  await navigator.clipboard.writeText(text);
  announce(t("ui.copied"));
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), COPIED_MS);
}
