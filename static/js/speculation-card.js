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
    this.addEventListener("change", ({ target }) => {
      if (target.name === "draft_model") this.pick(target.value);
    });
    this.addEventListener("omlx:refreshed", () => this.keepDraft());
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

  // The chosen draft has turned out not to fit: what is stored is chosen again.
  keepDraft() {
    const drafts = [...this.querySelectorAll('[name="draft_model"]')];
    if (drafts.some(({ checked, disabled }) => checked && !disabled)) return;
    const stored = drafts.find(({ defaultChecked }) => defaultChecked) ?? drafts[0];
    stored.checked = true;
    stored.dispatchEvent(new Event("input", { bubbles: true }));
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
