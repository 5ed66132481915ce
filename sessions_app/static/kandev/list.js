// The board and the task page: their lists are kept true.

import { keepLive, partsOf } from "./live.js";
import { showLocalTimes } from "./times.js";

const EVERY = 3000;

for (const place of document.querySelectorAll("[data-live]")) {
  const replace = partsOf([place.id.replace("part-", "")]);
  keepLive({
    url: () => place.dataset.live,
    every: EVERY,
    apply: ({ parts }) => {
      replace(parts);
      showLocalTimes(place);
    },
  });
}
showLocalTimes(document);

// A link to a form opens it.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target?.tagName === "DETAILS") target.open = true;
}
window.addEventListener("hashchange", openTarget);
openTarget();
