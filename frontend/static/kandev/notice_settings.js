// The settings page: allow notifications in this browser, or no longer.

import { allow, areAllowed, disallow } from "./notices.js";

const HTTP = "This browser shows no notifications of this site. Over plain http, most show none.";
const BLOCKED = "This browser blocks notifications of this site. You can change that in its settings.";
const SHOWN = "This browser shows notifications of the kinds above.";

const place = document.getElementById("browser-notices");
const canAsk = "Notification" in window;

function show() {
  const text = areAllowed() ? SHOWN : canAsk ? (Notification.permission === "denied" ? BLOCKED : "") : HTTP;
  place.querySelector("[role=status]").textContent = text;
  const [allowing, stopping] = place.querySelectorAll("button");
  allowing.hidden = areAllowed();
  stopping.hidden = !areAllowed();
  allowing.disabled = !canAsk;
}

if (place) {
  place.hidden = false;
  show();
  place.addEventListener("click", async ({ target }) => {
    if (!target.matches("button")) return;
    if (areAllowed()) disallow();
    else await allow(place.dataset.worker);
    show();
  });
}
