// The service worker of the installed app: a page for the time in which the server does not respond.
// Nothing else is stored; pages, their parts and the API always come from the server.

const STORE = "omlx-offline";
const OFFLINE = "/admin/offline";
const FILES = [OFFLINE, "/admin/static/css/app.css", "/admin/static/img/icon.svg"];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(STORE).then((store) => store.addAll(FILES)));
  skipWaiting();
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.mode === "navigate") event.respondWith(fetch(request).catch(() => stored(OFFLINE)));
  else if (FILES.includes(new URL(request.url).pathname)) {
    event.respondWith(fetch(request).catch(() => stored(request.url)));
  }
});

async function stored(address) {
  return (await caches.match(address)) ?? Response.error();
}
