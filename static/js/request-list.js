// Search and filter of the ended requests; new rows are filtered as they come.

import { t } from "./text.js";

class RequestList extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form[role=search]");
    this.form.addEventListener("input", this.apply);
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.addEventListener("omlx:refreshed", this.apply);
    window.addEventListener("pageshow", this.apply); // the browser has filled in the form again
  }

  disconnectedCallback() {
    window.removeEventListener("pageshow", this.apply);
  }

  apply = () => {
    const { search, state } = this.form.elements;
    const words = search.value.toLowerCase().split(/\s+/);
    const rows = [...this.querySelectorAll("tr[data-search]")];
    let shown = 0;
    for (const row of rows) {
      const found = words.every((word) => row.dataset.search.includes(word));
      const matches = found && (state.value === "" || row.dataset.state === state.value);
      row.toggleAttribute("data-filtered", !matches);
      shown += Number(matches);
    }
    const count = t("ui.activity.shown", { shown, count: rows.length });
    const place = this.querySelector("[data-shown]");
    if (place.textContent !== count) place.textContent = count;
  };
}

customElements.define("omlx-request-list", RequestList);
