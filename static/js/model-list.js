// Search, filter and order of the list of models. They apply when they are chosen: afterwards rows
// keep their places, and only rows that are new are filtered, whatever happens to the models.

import { t } from "./text.js";

const ORDERS = {
  loaded: (row) => (row.dataset.state === "unloaded" ? 1 : 0),
  name: (row) => row.dataset.search,
  smallest: (row) => Number(row.dataset.size),
  largest: (row) => -Number(row.dataset.size),
};

class ModelList extends HTMLElement {
  connectedCallback() {
    this.form = this.querySelector("form[role=search]");
    if (!this.form) return;
    this.filtered = new WeakSet();
    this.found = this.rows;
    this.form.addEventListener("input", () => this.apply());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.addEventListener("omlx:refreshed", () => this.filter(this.rows.filter(this.isNew)));
    window.addEventListener("pageshow", this.apply); // the browser has filled in the form again
  }

  disconnectedCallback() {
    window.removeEventListener("pageshow", this.apply);
  }

  get rows() {
    return [...this.querySelectorAll(".model")];
  }

  isNew = (row) => !this.filtered.has(row);

  apply = () => {
    const order = ORDERS[this.form.elements.order.value];
    const now = this.rows;
    const rows = [...new Set([...this.found, ...now])].filter((row) => row.isConnected);
    rows.sort((one, other) => compared(order(one), order(other)));
    if (rows.some((row, place) => row !== now[place])) rows[0].parentElement.append(...rows);
    this.filter(rows);
  };

  filter(rows) {
    const { search, show, source } = this.form.elements;
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const { dataset } = row;
      const matches =
        words.every((word) => dataset.search.includes(word)) &&
        (show.value !== "loaded" || dataset.state !== "unloaded") &&
        (show.value !== "fits" || dataset.fits !== undefined) &&
        (source.value === "" || dataset.source === source.value);
      row.toggleAttribute("data-filtered", !matches);
      this.filtered.add(row);
    }
    const all = this.rows;
    const shown = all.filter((row) => !row.hasAttribute("data-filtered")).length;
    const count = t("ui.models.shown", { shown, count: all.length });
    const place = this.querySelector("[data-shown]");
    if (place.textContent !== count) place.textContent = count;
  }
}

const { compare } = new Intl.Collator(undefined, { numeric: true }); // model-2 before model-10

function compared(one, other) {
  return typeof one === "string" ? compare(one, other) : one - other;
}

customElements.define("omlx-model-list", ModelList);
