// The end of the session while a page is open. The page stays as it is, with all input: a notice
// says how to log in, and goes away after a login in another tab.

import { reach } from "./connection.js";

const EVERY_MS = 2000;

const notice = document.querySelector("[data-logged-out]"); // none on the page of the login

export function isLoggedOut() {
  return notice !== null && !notice.hidden;
}

// Show the notice until there is a session again.
export async function loggedOut() {
  if (notice === null || isLoggedOut()) return;
  notice.hidden = false;
  let session = await fetchSession();
  while (!session.logged_in) {
    notice.querySelector("[data-with-password]").hidden = !session.password_set;
    notice.querySelector("[data-by-link]").hidden = session.password_set;
    await pause();
    session = await fetchSession();
  }
  notice.hidden = true;
  document.dispatchEvent(new CustomEvent("omlx:changed"));
}

async function fetchSession() {
  try {
    return JSON.parse((await reach("/admin/api/session")).body);
  } catch {
    return { password_set: false };
  }
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, EVERY_MS));
}

// A page without live parts would not notice that the server has stopped, or was started again.
async function watch() {
  for (;;) {
    await pause();
    if (document.visibilityState !== "visible" || isLoggedOut()) continue;
    if ((await fetchSession()).logged_in === false) loggedOut();
  }
}

if (!document.querySelector("omlx-live")) watch();

// The login replaces this page only if nothing was typed here.
notice?.querySelector("a").addEventListener("click", ({ currentTarget }) => {
  const typed = ({ value, defaultValue }) => value !== defaultValue;
  const ticked = ({ checked, defaultChecked }) => checked !== defaultChecked;
  const bars = document.querySelector("[data-savebar]:not([hidden])");
  const inputs = [...document.querySelectorAll("input, textarea")];
  const changed = inputs.some((input) => typed(input) || ticked(input));
  currentTarget.target = bars || changed ? "_blank" : "";
});
