// A library of static/vendor, loaded by the first element that needs it. If that fails, elements stay
// as they are: the next answer tries again, and then all are changed.

const VENDOR = "/admin/static/vendor";

export class Library {
  #loaded = null;
  #isLoading = false;
  #isDue = true;
  #failures = 0;

  // `apply` changes an element with the library; `selector` finds the elements of the page to change.
  constructor(file, selector, apply) {
    this.file = file;
    this.selector = selector;
    this.apply = apply;
  }

  use(element) {
    if (this.#loaded) this.apply(this.#loaded, element);
    else if (this.#isDue && !this.#isLoading) this.#load();
  }

  retry() {
    this.#isDue = true;
  }

  // An address of its own for each attempt: a browser may remember that an import has failed.
  async #load() {
    const attempt = this.#failures ? `?attempt=${this.#failures}` : "";
    this.#isLoading = true;
    this.#isDue = false;
    try {
      ({ default: this.#loaded } = await import(`${VENDOR}/${this.file}${attempt}`));
    } catch {
      this.#failures += 1;
    }
    this.#isLoading = false;
    if (!this.#loaded) {
      if (this.#isDue) this.#load(); // an answer has begun meanwhile
      return;
    }
    for (const element of document.querySelectorAll(this.selector)) this.use(element);
  }
}
