// The answers of the open conversation: begun, continued, beside one another, and taken up again.

import { path, twinOf } from "./tree.js";
import { Answer, isBeingStarted, runningAnswer } from "./answer.js";
import { drawSeed, requestBody } from "./request.js";
import { scrollToEnd } from "./turns.js";

export class Generation {
  // `page` is `omlx-chat`, whose conversation is the open one.
  constructor(page) {
    this.page = page;
  }

  // The answer on the page that is being generated.
  get running() {
    const { conversation } = this.page;
    const answers = conversation.path.flatMap(({ id }) => [
      runningAnswer(id),
      runningAnswer(twinOf(conversation.messages, id)?.id),
    ]);
    return answers.find((answer) => answer !== undefined);
  }

  // Answer a question: a new branch, or an answer beside another one.
  async answer(question, fields = {}) {
    const { conversation } = this.page;
    if (!(await this.page.loadTools())) return;
    const settings = { ...this.page.settings.values, ...fields.settings };
    const seed = fields.seed ?? (settings.seed === "" ? drawSeed() : Number(settings.seed));
    const { model } = settings;
    const own = { ...fields, model, settings, seed };
    await this.#generate(conversation, await conversation.addAnswer(question, own));
  }

  // Answer a question once more, beside an answer, which stays where it is in the window.
  async beside(message, fields = {}) {
    const turn = this.page.turns.get(message.id).element;
    const { top } = turn.getBoundingClientRect();
    const { seed, settings } = message;
    const own = { seed, ...fields, settings: { ...settings, ...fields.settings } };
    await this.answer(message.parent, { ...own, twin: message.id });
    scrollBy({ top: turn.getBoundingClientRect().top - top, behavior: "instant" });
  }

  // Generate an answer again in its place; try at once to reach a lost server.
  async retry(message) {
    const answer = runningAnswer(message.id);
    if (answer) return answer.retry();
    const { conversation } = this.page;
    if (!(await this.page.loadTools())) return undefined;
    await conversation.begin(message);
    return this.#generate(conversation, message);
  }

  // Let the model go on where an answer ends, up to the limit that is set now.
  async goOn(message) {
    const { conversation, settings } = this.page;
    const { maxTokens } = settings.values;
    message.settings = { ...message.settings, maxTokens };
    await conversation.begin(message, { continues: true });
    return this.#generate(conversation, message, true);
  }

  // Follow answers that another page has begun: this one before it was reloaded, another window.
  async takeUp() {
    for (const message of this.page.conversation.messages.values()) {
      if (message.status !== "running" || runningAnswer(message.id)) continue;
      if (message.response) this.#follow(message, (answer) => answer.resume());
      else if (!(await isBeingStarted(message.id))) this.#startAgain(message);
    }
  }

  stop() {
    this.running?.stop();
  }

  #startAgain(message) {
    return message.continued ? this.goOn(message) : this.retry(message);
  }

  async #generate(conversation, message, continues = false) {
    const turns = path(conversation.messages, continues ? message.id : message.parent);
    const images = await conversation.dataURIs(turns);
    const { settings, seed, twin, versus } = message;
    const original = conversation.get(twin);
    const plain = original !== undefined && !versus;
    const { most, until } = plain ? lengthOf(original) : {};
    const tools = this.page.toolbox.known(settings.tools ?? "");
    const body = requestBody(turns, settings, { seed, images, tools, plain, continues, most });
    this.page.titles.leave();
    this.#follow(message, (answer) => answer.start(body, until));
    if (!twin) scrollToEnd();
  }

  #follow(message, begin) {
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
    begin(answer).then(() => this.page.ended(message));
    if (this.page.conversation.id === message.conversation) this.page.render();
  }

  // Its end is drawn by `ended`, with the composer that is free again: keys work once it shows.
  #changed(message) {
    const isShown = this.page.conversation.id === message.conversation;
    if (isShown && message.status === "running") this.page.turns.changed(message);
  }
}

// How long the plain answer beside another one may get: the tokens of that one, or its text where
// it was stopped without a count.
function lengthOf(original) {
  const { status, usage } = original;
  return status === "done" && usage ? { most: usage.output_tokens } : { until: original };
}
