// Apply a chosen theme at once and store it, without reloading the page.

class Theme extends HTMLElement {
  connectedCallback() {
    this.addEventListener("change", (event) => this.choose(event.target.value));
  }

  choose(theme) {
    document.documentElement.dataset.theme = theme;
    fetch("/admin/preferences", { method: "POST", body: new URLSearchParams({ theme }) });
  }
}

customElements.define("omlx-theme", Theme);
