// Registers the service worker, which makes the dashboard an app that can be installed.

if (navigator.serviceWorker && document.querySelector("link[rel=manifest]")) {
  navigator.serviceWorker.register("/admin/worker.js", { scope: "/admin" }).catch(() => {});
}
