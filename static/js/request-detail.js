// A row of the list of requests opens the request in a dialog; without this script its link is a page.

import { t } from "./text.js";

class RequestDetail extends HTMLElement {
  connectedCallback() {
    this.dialog = this.querySelector("[data-request-dialog]");
    this.addEventListener("click", (event) => this.clicked(event));
  }

  clicked(event) {
    const { target } = event;
    const row = target.closest("tr[data-open]");
    const link = target.closest("a");
    const elsewhere = link ? !link.matches("[data-request]") : target.closest("button, details");
    const selects = event.ctrlKey || event.metaKey || event.shiftKey || !getSelection().isCollapsed;
    if (!row || elsewhere || selects) return;
    event.preventDefault();
    this.open(row.querySelector("[data-request]"));
  }

  async open({ href, dataset: { request, name } }) {
    const problem = this.dialog.querySelector("[data-problem]");
    const place = this.dialog.querySelector("[data-detail]");
    this.dialog.querySelector("h2").textContent = name;
    this.dialog.querySelector("[data-page]").href = href;
    place.replaceChildren();
    problem.hidden = true;
    this.dialog.showModal();
    const answer = await fetch(`/admin/parts/activity/request/${request}`).catch(() => null);
    if (answer?.ok) place.innerHTML = await answer.text();
    else problem.textContent = t(answer?.status === 404 ? "request.forgotten" : "ui.offline");
    problem.hidden = Boolean(answer?.ok);
  }
}

customElements.define("omlx-request-detail", RequestDetail);
