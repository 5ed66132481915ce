// The tabs of a session's page. On a wide screen the conversation is beside the selected panel, on a narrow
// one it is a tab like the others. Arrow keys move, and the selection is kept for the browser's tab.

const page = document.getElementById("session");
const tabs = [...page.querySelectorAll("[role=tab]")];
const wide = matchMedia("(min-width: 60rem)");
const KEY = "kandev-panel";
const opened = new Map(); // panel: function to call when it is shown

export function whenShown(panel, act) {
  opened.set(panel, act);
  if (page.dataset.shows === panel) act();
}

export function isShown(panel) {
  return page.dataset.shows === panel;
}

export function show(panel) {
  const wanted = tabs.find((tab) => tab.dataset.panel === panel && !(wide.matches && panel === "talk")) ?? tabs[wide.matches ? 1 : 0];
  page.dataset.shows = wanted.dataset.panel;
  for (const tab of tabs) {
    const isChosen = tab === wanted;
    tab.ariaSelected = String(isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    tab.hidden = wide.matches && tab.dataset.panel === "talk";
  }
  for (const panel of page.querySelectorAll(".panel")) panel.hidden = panel.id !== `panel-${wanted.dataset.panel}`;
  document.getElementById("talk").hidden = !wide.matches && wanted.dataset.panel !== "talk";
  opened.get(wanted.dataset.panel)?.();
  return wanted;
}

function choose(panel) {
  sessionStorage.setItem(KEY, panel);
  return show(panel);
}

function move(event) {
  const seen = tabs.filter((tab) => !tab.hidden);
  const at = seen.indexOf(event.target);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + seen.length, Home: 0, End: seen.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  choose(seen[to % seen.length].dataset.panel).focus();
}

export function begin() {
  const bar = page.querySelector(".tabs");
  bar.hidden = false;
  bar.addEventListener("keydown", move);
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab.dataset.panel));
  for (const panel of page.querySelectorAll(".panel")) {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", panel.id.replace("panel-", "tab-"));
  }
  wide.addEventListener("change", () => show(sessionStorage.getItem(KEY)));
  // A link to an element of the page opens the tab, and what is folded there, that contains it.
  document.addEventListener("click", ({ target }) => {
    const place = document.getElementById(target.closest?.("a[href^='#']")?.hash.slice(1));
    if (place?.closest("#talk")) show(wide.matches ? page.dataset.shows : "talk");
    const panel = place?.closest(".panel"), folded = place?.closest("details");
    if (panel) choose(panel.id.replace("panel-", ""));
    if (folded) folded.open = true;
    if (place?.matches("input")) place.focus();
  });
  // A link from another page may name the conversation.
  show(location.hash === "#talk" && !wide.matches ? "talk" : sessionStorage.getItem(KEY));
}
