// Notifications of this browser: what the server says needs its user, once each, while a page is open and not looked at.
// The browser is asked for its permission only after a click, on the settings page.

import { visible } from "./plain_text.js";

const ALLOWED = "kandev-notices"; // the address of the worker that shows them, once they are allowed in this browser
const TOLD = "kandev-notices-told";
const MOST = 60;

export function areAllowed() {
  return "Notification" in window && Notification.permission === "granted" && Boolean(localStorage.getItem(ALLOWED));
}

export async function allow(worker) {
  if ((await Notification.requestPermission()) !== "granted") return false;
  localStorage.setItem(ALLOWED, worker);
  activeWorker(worker); // so that it is ready for the first notification
  localStorage.removeItem(TOLD);
  return true;
}

export function disallow() {
  localStorage.removeItem(ALLOWED);
}

// What was there when this browser was allowed is not told; afterwards each is told by one of its tabs.
export async function showNotices(notices) {
  if (!areAllowed()) return;
  const told = JSON.parse(localStorage.getItem(TOLD) ?? "null");
  const fresh = notices.filter(({ id }) => told && !told.includes(id));
  localStorage.setItem(TOLD, JSON.stringify([...notices.map(({ id }) => id), ...(told ?? [])].filter((id, at, all) => all.indexOf(id) === at).slice(0, MOST)));
  if (!fresh.length || document.hasFocus()) return;
  const worker = await activeWorker(localStorage.getItem(ALLOWED));
  for (const { tag, what, title, url } of fresh) show(worker, visible(what), { body: visible(title), tag, renotify: true, icon: document.querySelector("link[rel=icon]")?.href, data: { url } });
}

// Once it is active: until then it shows nothing, and phones show nothing without it.
export async function activeWorker(address) {
  const worker = await navigator.serviceWorker?.register(address).catch(() => null);
  const starting = worker?.installing ?? worker?.waiting;
  if (worker && !worker.active && starting) await new Promise((ready) => starting.addEventListener("statechange", () => starting.state === "installed" || ready()));
  return worker;
}

function show(worker, what, options) {
  if (worker?.active) return worker.showNotification(what, options); // the only way on phones
  const notice = new Notification(what, options);
  notice.onclick = () => {
    window.focus();
    location.assign(options.data.url);
  };
}
