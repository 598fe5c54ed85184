// Keeps the switch, the draft and the strategy of a model consistent: a change of one shows in the
// others at once.

const OFF = "off";
const NGRAM = "ngram";
const AUTO = "auto";
const DRAFT = "draft";

class Speculation extends HTMLElement {
  connectedCallback() {
    this.switch = this.querySelector("[data-switch]");
    this.strategy = this.querySelector('[name="speculation"]');
    this.switch.addEventListener("change", () => this.toggle());
    this.strategy.addEventListener("change", () => this.follow());
    for (const draft of this.querySelectorAll('[name="draft_model"]')) {
      draft.addEventListener("change", () => this.pick(draft.value));
    }
    this.closest("form").addEventListener("omlx:restored", () => this.follow());
    this.follow();
  }

  // The strategy that would be in effect if the form were saved now.
  get effective() {
    return this.strategy.value || this.dataset.inherited;
  }

  toggle() {
    if (!this.switch.checked) this.choose(OFF);
    else this.choose(this.dataset.inherited === OFF ? AUTO : "");
  }

  // "No draft" must not fall back to an inherited draft, and a chosen draft needs a strategy that
  // uses it.
  pick(draft) {
    const { inherited } = this.dataset;
    const draftless = [NGRAM, OFF];
    const inherits = this.hasAttribute("data-inherits-draft");
    if (draft && draftless.includes(this.effective)) {
      this.choose(draftless.includes(inherited) ? AUTO : "");
    } else if (!draft && this.effective !== OFF && (inherits || this.effective.includes(DRAFT))) {
      this.choose(NGRAM);
    }
  }

  choose(strategy) {
    this.strategy.value = strategy;
    this.follow();
    this.strategy.dispatchEvent(new Event("input", { bubbles: true }));
  }

  follow() {
    this.switch.checked = this.effective !== OFF;
    this.toggleAttribute("data-off", this.effective === OFF);
  }
}

customElements.define("omlx-speculation", Speculation);
