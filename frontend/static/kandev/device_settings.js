// The settings page: let notifications be pushed to this browser. It is asked after a click, subscribes to the push service
// of its maker with the key of this deployment, and the form tells the server what it got.

import { rememberDevice } from "./devices.js";
import { activeWorker } from "./notices.js";

const INSECURE = "Browsers allow this only over https.";
const NO_PUSH = "This browser cannot be notified. On an iPhone or iPad, add Kandev to the home screen first, and open it there.";
const BLOCKED = "This browser blocks notifications of this site. You can change that in its settings.";
const NO_SERVICE = "The push service of this browser did not answer. Try again later.";

const NO_ANSWER = "The server did not answer. Try again.";

const form = document.getElementById("new-device");

function say(text) {
  form.querySelector("[role=status]").textContent = text;
}

function bytesOf(base64url) {
  return Uint8Array.from(atob(base64url.replace(/-/g, "+").replace(/_/g, "/")), (character) => character.charCodeAt(0));
}

async function keyOfServer() {
  const body = new URLSearchParams({ csrfmiddlewaretoken: form.elements.csrfmiddlewaretoken.value });
  const answer = await fetch(form.dataset.key, { method: "POST", body, redirect: "manual" });
  return (await answer.json()).key;
}

async function subscribe(key) {
  const { pushManager } = await activeWorker(form.dataset.worker);
  const options = { userVisibleOnly: true, applicationServerKey: bytesOf(key) };
  try {
    return await pushManager.subscribe(options);
  } catch (error) {
    const earlier = error.name === "InvalidStateError" && (await pushManager.getSubscription()); // with another key
    if (!earlier) throw error;
    await earlier.unsubscribe();
    return pushManager.subscribe(options);
  }
}

async function add() {
  if ((await Notification.requestPermission()) !== "granted") return say(BLOCKED);
  say("Waiting for the push service…");
  const key = await keyOfServer().catch(() => null);
  if (!key) return say(NO_ANSWER);
  const subscription = await subscribe(key).catch(() => null);
  if (!subscription) return say(NO_SERVICE);
  const { endpoint, keys } = subscription.toJSON();
  const values = { endpoint, key: keys.p256dh, auth: keys.auth, signed_with: key };
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  rememberDevice(form.dataset.worker, form.dataset, endpoint);
  form.submit();
}

async function markThisDevice() {
  const registration = await navigator.serviceWorker.getRegistration(form.dataset.worker);
  const subscription = await registration?.pushManager.getSubscription();
  if (!subscription) return;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(subscription.endpoint));
  const hex = [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const row = document.querySelector(`[data-device="${hex}"]`);
  if (row) row.querySelector(".this-device").hidden = false;
}

function begin() {
  if (!isSecureContext) return say(INSECURE);
  if (!("PushManager" in window && "Notification" in window && navigator.serviceWorker)) return say(NO_PUSH);
  const button = form.querySelector("button.main");
  button.disabled = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    await add();
    button.disabled = false;
  });
  markThisDevice();
}

if (form) begin();
