// The switch, the draft and the strategy of a model say the same thing: what is done to one shows in the others,
// before anything is saved.

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

  // The strategy in effect if the form were saved as it stands.
  get meant() {
    return this.strategy.value || this.dataset.inherited;
  }

  toggle() {
    if (!this.switch.checked) this.choose(OFF);
    else this.choose(this.dataset.inherited === OFF ? AUTO : "");
  }

  // Without a draft of its own a model would take one that is inherited; one that is picked has to be used.
  pick(draft) {
    if (draft) {
      const draftless = [NGRAM, OFF];
      if (draftless.includes(this.meant)) this.choose(draftless.includes(this.dataset.inherited) ? AUTO : "");
    } else if (this.meant !== OFF && (this.hasAttribute("data-inherits-draft") || this.meant.includes(DRAFT))) {
      this.choose(NGRAM);
    }
  }

  choose(strategy) {
    this.strategy.value = strategy;
    this.follow();
    this.strategy.dispatchEvent(new Event("input", { bubbles: true }));
  }

  follow() {
    this.switch.checked = this.meant !== OFF;
    this.toggleAttribute("data-off", this.meant === OFF);
  }
}

customElements.define("omlx-speculation", Speculation);
