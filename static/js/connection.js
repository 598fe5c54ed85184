// What a page asks the server for by itself, and a warning while the server does not respond.

const LATE_MS = 5000;
const LOST_MS = 60_000; // of silence: the connection broke without a sign
const FAILURE = 500; // also of a proxy whose server does not respond

const notice = document.querySelector("[data-offline]");

// Fetch, and resolve to { answer, body }, the text. Rejects if the server is not reached.
export async function reach(path, options) {
  const late = setTimeout(() => warn(true), LATE_MS);
  try {
    const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(LOST_MS) });
    const body = await answer.text();
    warn(answer.status >= FAILURE);
    return { answer, body };
  } catch (error) {
    warn(true);
    throw error;
  } finally {
    clearTimeout(late);
  }
}

function warn(isOffline) {
  notice.hidden = !isOffline;
}

// A form that the browser sends by itself would lose its input.
document.addEventListener("submit", (event) => {
  if (notice.hidden || !event.target.matches('[method="post"]')) return;
  event.preventDefault();
  notice.scrollIntoView({ block: "nearest" });
});
