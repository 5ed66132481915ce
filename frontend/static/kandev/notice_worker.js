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
  const options = { body: String(body ?? ""), tag: String(tag ?? ""), data: { url: String(url ?? "/") } };
  event.waitUntil(self.registration.showNotification(String(title ?? "Kandev"), options)); // browsers require one for each
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
