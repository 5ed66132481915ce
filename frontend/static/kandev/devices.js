// What this browser knows of its subscription to notifications that are pushed to it: the server pushes to it while its
// user is signed in here, so it has to learn of each new sign-in.

const DEVICE = "kandev-device";

// worker: the address of the service worker; renew and replace: where to report a new sign-in and a new subscription;
// endpoint: the address of the subscription; signIn: the sign-in that was reported last.
export function rememberDevice(worker, { renew, replace }, endpoint) {
  localStorage.setItem(DEVICE, JSON.stringify({ worker, renew, replace, endpoint, signIn: "" }));
}

function base64url(buffer) {
  return btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

async function post(address, values) {
  const body = new URLSearchParams({ ...values, csrfmiddlewaretoken: document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "" });
  return fetch(address, { method: "POST", body, redirect: "manual" }).catch(() => null);
}

// The push service has given this browser another subscription, and its service worker could not report it.
function replaceSubscription({ replace, endpoint: former }, subscription) {
  const { endpoint, keys } = subscription.toJSON();
  return post(replace, { former, endpoint, key: keys.p256dh, auth: keys.auth, signed_with: base64url(subscription.options.applicationServerKey) });
}

export async function renewDevice(signIn) {
  const known = JSON.parse(localStorage.getItem(DEVICE) ?? "null");
  if (!known) return;
  const registration = await navigator.serviceWorker?.getRegistration(known.worker);
  const subscription = await registration?.pushManager.getSubscription();
  if (!subscription) return localStorage.removeItem(DEVICE);
  const { endpoint } = subscription;
  const isReplaced = known.endpoint && known.endpoint !== endpoint;
  if (!isReplaced && known.signIn === signIn) return;
  const answer = isReplaced ? await replaceSubscription(known, subscription) : await post(known.renew, { endpoint });
  if (answer?.ok) localStorage.setItem(DEVICE, JSON.stringify({ ...known, endpoint, signIn }));
  else if (answer?.status === 404) localStorage.removeItem(DEVICE); // the device was removed
}
