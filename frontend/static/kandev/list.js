// Keep the lists of board, task, executors and sweeps up to date.

import { keepLive, listen, partsOf } from "./live.js";
import { showLocalTimes } from "./times.js";

const EVERY = 3000;
const EVERY_WITH_SOCKET = 15000;
const AFTER_NEWS = 150;

function follow(place) {
  const replace = partsOf([place.id.replace("part-", "")]);
  let socket = null;
  const live = keepLive({
    url: () => place.dataset.live,
    every: () => Number(place.querySelector("[data-every]")?.dataset.every) || (socket?.isOpen() ? EVERY_WITH_SOCKET : EVERY),
    apply: ({ parts }) => {
      replace(parts);
      showLocalTimes(place);
      place.dispatchEvent(new CustomEvent("kandev:shown", { bubbles: true }));
    },
    back: () => socket?.renew(),
  });
  place.addEventListener("kandev:look", () => live.soon());
  if (!place.dataset.socket) return;
  socket = listen({ path: () => place.dataset.socket, onFrame: () => live.soon(AFTER_NEWS), onEnd: live.end });
}

document.querySelectorAll("main [data-live]").forEach(follow);

// A link to a form, or to something in a folded list, opens it.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const folded = target?.closest?.("details:not([open])");
  if (!folded) return;
  folded.open = true;
  target.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);
openTarget();
