// Programs to connect: a search, and snippets for the model that is chosen above them.

import { t } from "./text.js";

class Connect extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form[role=search]");
    this.live = this.querySelector("omlx-live");
    this.form.addEventListener("input", this.apply);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.elements.model?.addEventListener("change", this.choose);
    this.addEventListener("omlx:refreshed", this.apply);
    window.addEventListener("pageshow", this.apply); // the browser has filled in the form again
  }

  disconnectedCallback() {
    window.removeEventListener("pageshow", this.apply);
  }

  choose = () => {
    const query = new URLSearchParams({ model: this.form.elements.model.value });
    this.live.dataset.source = `/admin/parts/connect?${query}`;
    history.replaceState(null, "", `?${query}`);
    this.live.refresh();
  };

  apply = () => {
    const words = this.form.querySelector("[type=search]").value.toLowerCase().split(/\s+/);
    const apps = [...this.querySelectorAll("[data-search]")];
    let shown = 0;
    for (const app of apps) {
      const matches = words.every((word) => app.dataset.search.includes(word));
      app.toggleAttribute("data-filtered", !matches);
      shown += Number(matches);
    }
    for (const group of this.querySelectorAll("section")) {
      const all = [...group.querySelectorAll("[data-search]")];
      const none = all.length > 0 && all.every((app) => app.hasAttribute("data-filtered"));
      group.toggleAttribute("data-filtered", none);
    }
    const count = t("ui.connect.shown", { shown, count: apps.length });
    const place = this.querySelector("[data-shown]");
    if (place.textContent !== count) place.textContent = count;
  };
}

customElements.define("omlx-connect", Connect);
