// Choosing a theme shows it at once, and has it remembered without losing what stands in the page.

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
