// The filter of the log: the server applies it, to all lines that it has read.

const TYPING_MS = 250;

class Log extends HTMLElement {
  connectedCallback() {
    const form = this.querySelector("form");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply(form);
    });
    form.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.apply(form), TYPING_MS);
    });
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
  }

  // Shown while paused, too. The address has the filter, for a reload.
  apply(form) {
    const query = new URLSearchParams(new FormData(form));
    const live = this.querySelector("omlx-live");
    live.dataset.source = `${live.dataset.source.split("?")[0]}?${query}`;
    history.replaceState(null, "", `?${query}`);
    live.fetchAgain().catch(() => {}); // there is a warning
  }
}

customElements.define("omlx-log", Log);
