// The page of a run: shows the selected node beside the graph without a page load, and supports the back button.

const run = document.getElementById("part-run");

function show(address) {
  const live = new URL(run.dataset.live, location.href);
  live.search = new URL(address, location.href).search;
  run.dataset.live = live.pathname + live.search;
  run.dispatchEvent(new Event("kandev:look"));
}

run.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-node]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const address = link.getAttribute("href");
  history.pushState(null, "", address.split("#")[0]);
  show(address);
  run.addEventListener("kandev:shown", () => scrollToDetail(), { once: true });
});

// On a small screen the details are below the graph.
function scrollToDetail() {
  const detail = document.getElementById("node-detail");
  const { top } = detail.getBoundingClientRect();
  if (top > innerHeight * 0.8 || top < 0) detail.scrollIntoView({ block: "start" });
  detail.focus({ preventScroll: true });
}

// Keep the scroll position of a wide graph when it is drawn again.
let left = 0, top = 0;
run.addEventListener("scroll", ({ target }) => {
  if (target.matches?.(".drawing")) [left, top] = [target.scrollLeft, target.scrollTop];
}, true);
run.addEventListener("kandev:shown", () => run.querySelector(".drawing")?.scrollTo({ left, top, behavior: "instant" }));

addEventListener("popstate", () => show(location.href));
