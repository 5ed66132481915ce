// The list of sessions beside a conversation: beside it on a wide screen, over it on a narrow one. It is brought up to date
// while it is looked at, and what the page shows of its own session is marked as seen, at most every few seconds.

import { jittered, partsOf } from "./live.js";

const EVERY = 10000;
const SEEN_EVERY = 5000;
const YEAR = 31536000;

const workbench = document.getElementById("workbench");
const panel = document.getElementById("sessions-panel");
const toggle = document.getElementById("sessions-toggle");
const pins = document.getElementById("pins");
const page = document.getElementById("session");
const wide = matchMedia("(min-width: 75rem)");
const replace = partsOf(["session-list"]);
const behind = [document.querySelector(".workbench-main"), document.querySelector("header.top")];

// --- shown or not ---

const isShown = () => (wide.matches ? !("folded" in workbench.dataset) : "drawn" in workbench.dataset);

function noteShown() {
  toggle.setAttribute("aria-expanded", String(isShown()));
  for (const each of behind) each.inert = !wide.matches && isShown();
}

function fold(folded) {
  workbench.toggleAttribute("data-folded", folded);
  document.cookie = `${panel.dataset.cookie}=${folded ? "closed" : ""}; path=/; max-age=${folded ? YEAR : 0}; samesite=lax`;
  noteShown();
}

function draw(drawn) {
  workbench.toggleAttribute("data-drawn", drawn);
  noteShown();
  if (drawn) (panel.querySelector("[aria-current]") ?? panel.querySelector("a"))?.focus();
  else toggle.focus();
}

toggle.hidden = false;
toggle.addEventListener("click", () => {
  wide.matches ? fold(isShown()) : draw(true);
  if (isShown()) update();
});
wide.addEventListener("change", () => {
  delete workbench.dataset.drawn;
  noteShown();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && "drawn" in workbench.dataset && draw(false));
document.addEventListener("pointerdown", ({ target }) => "drawn" in workbench.dataset && !panel.contains(target) && draw(false));
noteShown();

// --- up to date ---

let timer;

// While the server does not answer, and after the page has ended because its user is logged out: see live.js.
const isUnknown = () => "unknown" in document.documentElement.dataset;

async function update() {
  clearTimeout(timer);
  timer = setTimeout(update, jittered(EVERY));
  if (document.hidden || !isShown() || isUnknown()) return;
  const answer = await fetch(panel.dataset.updates, { headers: { Accept: "application/json" }, redirect: "manual", cache: "no-store" }).catch(() => null);
  if (answer?.ok && !isUnknown()) replace((await answer.json()).parts);
}

document.addEventListener("visibilitychange", () => document.hidden || update());
timer = setTimeout(update, jittered(EVERY));

// --- pins ---

document.addEventListener("submit", async (event) => {
  if (event.target !== pins || !event.submitter) return;
  event.preventDefault();
  const button = event.submitter, body = new FormData(pins, button);
  body.set("quiet", "1");
  const answer = await fetch(button.formAction, { method: "POST", body, redirect: "manual" }).catch(() => null);
  if (answer?.ok) update();
});

// --- seen ---

let seen = Number(panel.dataset.seenSeq), seenTimer = null;

function noteSeen() {
  const shown = Number(page.dataset.shownSeq ?? page.dataset.lastSeq);
  if ("past" in page.dataset || document.hidden || isUnknown() || shown <= seen || seenTimer) return;
  const body = new FormData(pins);
  body.set("seq", shown);
  seen = shown;
  seenTimer = setTimeout(() => {
    seenTimer = null;
    noteSeen();
  }, SEEN_EVERY);
  fetch(panel.dataset.seen, { method: "POST", body, redirect: "manual", keepalive: true }).catch(() => null);
}

new MutationObserver(noteSeen).observe(page, { attributeFilter: ["data-shown-seq"] });
document.addEventListener("visibilitychange", noteSeen);
noteSeen();
