// Requests to /admin/api with JSON; errors have a message in the language of the page.

import { loggedOut } from "./session.js";
import { known, t } from "./text.js";

export const API = "/admin/api";

export class Refused extends Error {
  // `field` is the name of the setting at fault, if any.
  constructor(status, { code, params, param, message } = {}) {
    super(known(code) ? t(code, labelled(params)) : message || t("ui.error.server", { status }));
    this.status = status;
    this.code = code;
    this.params = params;
    this.field = param;
  }
}

// Show settings by their labels. `where` is the field beside which the message stands.
function labelled(params = {}) {
  const label = ([name, value]) => {
    const key = `settings.${value}.label`;
    return [name, name !== "where" && known(key) ? t(key) : value];
  };
  return Object.fromEntries(Object.entries(params).map(label));
}

// The path of a model's resource; the slashes of the id are kept.
export function modelPath(id, resource) {
  return `/models/${id.split("/").map(encodeURIComponent).join("/")}/${resource}`;
}

// Resolve to { body, etag }. Throw Refused for an error status and if no server answers.
export async function send(method, path, body, { etag, signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  if (etag) headers["If-Match"] = etag;
  let answer;
  try {
    const payload = body && JSON.stringify(body);
    answer = await fetch(API + path, { method, headers, signal, body: payload });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: t("ui.error.offline") });
  }
  if (!answer.ok) throw await refusal(answer);
  const content = await answer.json().catch(() => ({}));
  return { body: content, etag: answer.headers.get("ETag") };
}

// The error of an answer. One without a session shows how to log in.
export async function refusal(answer) {
  const { error } = await answer.json().catch(() => ({}));
  if (answer.status === 401 && error?.code === "auth.session") {
    loggedOut();
    return new Refused(answer.status, { code: "ui.logged_out" });
  }
  return new Refused(answer.status, error);
}
