// Choosing a theme shows it at once, and has it remembered without losing what stands in the page.

class Theme extends HTMLElement {
  connectedCallback() {
    this.addEventListener("change", (event) => this.choose(event.target.value));
  }

  choose(theme) {
    document.documentElement.dataset.theme = theme;
    const body = new URLSearchParams({ theme });
    fetch("/admin/preferences", { method: "POST", body, redirect: "manual" });
  }
}

customElements.define("omlx-theme", Theme);
