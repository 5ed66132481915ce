// Shows what is pushed to this browser, and opens what a notification is about. This worker serves no page and stores
// nothing: its scope is the folder it is in.

function read(data) {
  try {
    return data.json() ?? {};
  } catch {
    return {};
  }
}

self.addEventListener("push", (event) => {
  const { title, body, url, tag } = read(event.data); // texts of the server, in which nothing can hide
  const options = { body: String(body ?? ""), tag: String(tag ?? ""), renotify: Boolean(tag), data: { url: String(url ?? "/") } };
  event.waitUntil(self.registration.showNotification(String(title ?? "Kandev"), options)); // browsers require one for each
});

const DEVICES = "/settings/notifications/devices/";

function base64url(buffer) {
  return btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

async function post(action, values) {
  const options = { redirect: "manual", cache: "no-store" };
  const { token } = await (await fetch(`${DEVICES}replace/`, options)).json();
  const body = new URLSearchParams(values);
  const answer = await fetch(DEVICES + action, { ...options, method: "POST", body, headers: { "X-CSRFToken": token } });
  if (!answer.ok) throw new Error(`${action} ${answer.status}`);
  return answer;
}

async function subscribeAgain(former) {
  const known = former?.options.applicationServerKey;
  const applicationServerKey = known ?? (await (await post("key/")).json()).key;
  return self.registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey });
}

// What fails here, as without network or while nobody is signed in, the next page does: see devices.js.
async function replaceSubscription(former, given) {
  const made = given ?? (await self.registration.pushManager.getSubscription()) ?? (await subscribeAgain(former));
  const { endpoint, keys } = made.toJSON();
  const signedWith = base64url(made.options.applicationServerKey);
  await post("replace/", { former: former?.endpoint ?? "", endpoint, key: keys.p256dh, auth: keys.auth, signed_with: signedWith });
}

self.addEventListener("pushsubscriptionchange", (event) => {
  event.waitUntil(replaceSubscription(event.oldSubscription, event.newSubscription));
});

async function open(url) {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const same = windows.find((one) => one.url === url);
  return same ? same.focus() : self.clients.openWindow(url);
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const url = new URL(event.notification.data?.url ?? "/", self.location.origin);
  if (url.origin !== self.location.origin) return;
  event.waitUntil(open(url.href));
});
