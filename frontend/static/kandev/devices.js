// What this browser knows of its subscription to notifications that are pushed to it: the server pushes to it while its
// user is signed in here, so it has to learn of each new sign-in.

const DEVICE = "kandev-device";

// worker: the address of the service worker; renew: where to tell of a new sign-in; signIn: the last one that was told.
export function rememberDevice(worker, renew) {
  localStorage.setItem(DEVICE, JSON.stringify({ worker, renew, signIn: "" }));
}

export async function renewDevice(signIn) {
  const known = JSON.parse(localStorage.getItem(DEVICE) ?? "null");
  if (!known || known.signIn === signIn) return;
  const registration = await navigator.serviceWorker?.getRegistration(known.worker);
  const subscription = await registration?.pushManager.getSubscription();
  if (!subscription) return localStorage.removeItem(DEVICE);
  const body = new URLSearchParams({ endpoint: subscription.endpoint, csrfmiddlewaretoken: document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "" });
  const answer = await fetch(known.renew, { method: "POST", body, redirect: "manual" }).catch(() => null);
  if (answer?.ok) localStorage.setItem(DEVICE, JSON.stringify({ ...known, signIn }));
}
