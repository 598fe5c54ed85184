// Diagrams and pages that an answer has written, drawn in a frame that reaches neither this page nor
// any network (static/frame.html, with a policy of its own). Nothing is drawn unless one asks for it.

import { t } from "../text.js";

const FRAME = "/admin/static/frame.html";
const MERMAID = "/admin/static/vendor/mermaid/mermaid.tiny.js"; // 2.5 MB: at the first diagram
const KINDS = new Set(["html", "mermaid", "svg"]);
const TALLEST = 900;

let library = null;

export const canPreview = (language) => KINDS.has(language);

// Show the preview of a block of code in its place, or the code again.
export async function togglePreview(block, language, button) {
  const pre = block.querySelector("pre");
  const shown = block.querySelector("[data-preview]");
  button.setAttribute("aria-pressed", String(!shown));
  pre.hidden = !shown;
  if (shown) shown.remove();
  else block.append(await preview(pre.textContent, language));
}

async function preview(source, kind) {
  if (kind === "mermaid") library ??= await fetchLibrary();
  if (kind === "mermaid" && library === null) return missing();
  const frame = document.createElement("iframe");
  frame.className = "preview";
  frame.dataset.preview = "";
  frame.title = t("ui.chat.preview");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = FRAME;
  const dark = isDark();
  frame.addEventListener("load", () => {
    const message = { kind, source, dark, ...(kind === "mermaid" ? { library } : {}) };
    frame.contentWindow.postMessage(message, "*"); // its origin is opaque
  }, { once: true });
  if (kind === "mermaid") fit(frame);
  return frame;
}

// A diagram is as high as it is drawn; a page of its own has the height of the style sheet.
function fit(frame) {
  addEventListener("message", function heard({ source, data }) {
    if (source !== frame.contentWindow || !Number.isFinite(data?.height)) return;
    frame.height = Math.min(TALLEST, Math.ceil(data.height));
    removeEventListener("message", heard);
  });
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

async function fetchLibrary() {
  const answer = await fetch(MERMAID).catch(() => null);
  return answer?.ok ? answer.text() : null;
}

function missing() {
  const note = document.createElement("p");
  note.className = "preview-missing";
  note.dataset.preview = "";
  note.textContent = t("ui.chat.preview.missing");
  return note;
}
