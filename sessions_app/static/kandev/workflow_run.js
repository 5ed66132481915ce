// A run: a node that is chosen is shown beside the graph without another page, and can be come back to.

const place = document.getElementById("part-run");

function show(address) {
  const live = new URL(place.dataset.live, location.href);
  live.search = new URL(address, location.href).search;
  place.dataset.live = live.pathname + live.search;
  place.dispatchEvent(new Event("kandev:look"));
}

place.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-node]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const address = link.getAttribute("href");
  history.pushState(null, "", address.split("#")[0]);
  show(address);
  place.addEventListener("kandev:shown", () => bringNear(), { once: true });
});

// On a telephone the node is below the graph.
function bringNear() {
  const detail = document.getElementById("node-detail");
  const { top } = detail.getBoundingClientRect();
  if (top > innerHeight * 0.8 || top < 0) detail.scrollIntoView({ block: "start" });
  detail.focus({ preventScroll: true });
}

// A wide graph stays where it was scrolled to when it is drawn anew.
let left = 0, top = 0;
place.addEventListener("scroll", ({ target }) => {
  if (target.matches?.(".drawing")) [left, top] = [target.scrollLeft, target.scrollTop];
}, true);
place.addEventListener("kandev:shown", () => place.querySelector(".drawing")?.scrollTo({ left, top, behavior: "instant" }));

addEventListener("popstate", () => show(location.href));
