// Talking to /admin/api: JSON in, JSON out, and refusals as errors that can say why in the page's language.

import { known, t } from "./text.js";

const API = "/admin/api";

export class Refused extends Error {
  // `field` names the setting at fault, if any.
  constructor(status, { code, params, param, message } = {}) {
    super(known(code) ? t(code, params) : message || t("ui.error.server", { status }));
    this.status = status;
    this.code = code;
    this.field = param;
  }
}

// The path of a model's part of the API; ids keep their slashes.
export function modelPath(id, what) {
  return `/models/${id.split("/").map(encodeURIComponent).join("/")}/${what}`;
}

// Resolves to { body, etag }. Throws Refused for an answer that is not a success, and where no server answers.
export async function send(method, path, body, { etag, signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  if (etag) headers["If-Match"] = etag;
  let answer;
  try {
    answer = await fetch(API + path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: t("ui.error.offline") });
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401 && told.error?.code === "auth.session") {
    location.assign(`/admin/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (!answer.ok) throw new Refused(answer.status, told.error);
  return { body: told, etag: answer.headers.get("ETag") };
}
