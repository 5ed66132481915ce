// The board: move tasks between columns, by dragging a card or by its dialog. The server decides; a task that it does
// not move goes back to where it was, with the reason.

import { forgetPress } from "./live.js";
import { visible } from "./plain_text.js";

const DRAG_FROM = 6; // pixels
const LONG_PRESS = 400; // of a finger, which scrolls otherwise
const EDGE = 60; // pixels at the edge of the window in which a drag scrolls
const SCROLL_STEP = 14;
const SHOWN_FOR = 8000;
const OWN_CONTROLS = "input, button, select, textarea, summary, label, a:not(.title)";

const place = document.getElementById("part-board");
const form = document.getElementById("actions");
const moved = document.getElementById("moved");
const dialog = document.getElementById("move"); // null for somebody who only reads, who has no card to move either
const unfinished = document.getElementById("unfinished");

const cardOf = (id) => place.querySelector(`.task[data-key="${CSS.escape(id)}"]`);
const columnOf = (state) => place.querySelector(`.column[data-state="${state}"]`);
const movesOf = (card) => new Map(card.dataset.moves.split(" ").map((move) => move.split(":")));

function taskOf(card) {
  return { id: card.dataset.key, title: card.querySelector(".title").textContent, shown: card.closest(".column").dataset.state };
}

// --- what has happened, in words ---

let hiding;

function say(text, isRefused = false) {
  clearTimeout(hiding);
  moved.textContent = visible(text);
  moved.classList.toggle("refused", isRefused);
  if (!isRefused) hiding = setTimeout(() => (moved.textContent = ""), SHOWN_FOR);
}

// --- the request ---

// confirmed: the version of the unfinished work that the user has seen.
async function move(task, to, confirmed = "") {
  const putBack = showIn(task.id, to);
  say(`Moving “${task.title}”…`);
  const answer = await request(task, to, confirmed).catch(() => null);
  if (answer?.ok) return done(task, answer.message);
  putBack();
  if (answer?.html) return ask(task, to, answer);
  say(answer?.message ?? "The server did not answer. Look where the task is before you move it again.", true);
  place.dispatchEvent(new CustomEvent("kandev:look"));
}

async function request({ id, shown }, to, confirmed) {
  const body = new FormData(form);
  body.set("shown", shown);
  body.set("to", to);
  body.set("confirmed", confirmed);
  const response = await fetch(`/tasks/${id}/move/`, { method: "POST", body, headers: { Accept: "application/json" }, redirect: "manual" });
  if (!response.ok && response.status !== 409) return { message: "The server refused this move. Reload the page." };
  return { ...(await response.json()), ok: response.ok };
}

function done(task, message) {
  say(message);
  if (task.byDialog) {
    focusIfLost(task.id);
    place.addEventListener("kandev:shown", () => focusIfLost(task.id), { once: true });
  }
  place.dispatchEvent(new CustomEvent("kandev:look"));
}

// After a dialog, the focus is on the card; an update of the page meanwhile may have replaced what had it.
function focusIfLost(id) {
  if (document.activeElement === document.body) cardOf(id)?.querySelector(".title").focus({ preventScroll: true });
}

// Show a card in another column until the server answers; returns what puts it back, unless the page was updated since.
function showIn(id, to) {
  const card = cardOf(id), list = columnOf(to)?.querySelector("ul");
  if (!card || !list) return () => {};
  const marker = document.createComment("");
  card.before(marker);
  keepingFocus(card, () => list.prepend(card));
  card.setAttribute("aria-busy", "true");
  return () => {
    card.removeAttribute("aria-busy");
    if (marker.isConnected && card.isConnected) keepingFocus(card, () => marker.replaceWith(card));
  };
}

function keepingFocus(card, change) {
  const focused = card.contains(document.activeElement) ? document.activeElement : null;
  change();
  focused?.focus({ preventScroll: true });
}

function ask(task, to, { html, message, version }) {
  say(message, true);
  document.getElementById("unfinished-work").innerHTML = html;
  unfinished.returnValue = "";
  unfinished.onclose = () => unfinished.returnValue === "done" && move(task, to, version);
  unfinished.showModal();
}

// --- the dialog of a card ---

let chosen = null;

place.addEventListener("click", (event) => {
  const link = event.target.closest(".move");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const card = link.closest(".task");
  chosen = { ...taskOf(card), byDialog: true };
  document.getElementById("move-task").textContent = visible(chosen.title);
  const moves = card.dataset.moves.split(" ");
  for (const item of dialog.querySelectorAll("[data-move]")) item.hidden = !moves.includes(item.dataset.move);
  dialog.showModal();
});

dialog?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-move] button");
  if (!button) return;
  dialog.close();
  move(chosen, button.value);
});

// --- dragging ---

let press = null; // what may become a drag
let drag = null;

place.addEventListener("pointerdown", (event) => {
  const card = event.target.closest(".task[data-moves]");
  if (!card || !event.isPrimary || event.button !== 0 || event.target.closest(OWN_CONTROLS)) return;
  press = { card, x: event.clientX, y: event.clientY, byFinger: event.pointerType === "touch" };
  if (!press.byFinger) return;
  press.timer = setTimeout(begin, LONG_PRESS);
  card.addEventListener("touchmove", keepFromScrolling, { passive: false }); // at the card: it may be replaced meanwhile
});

function keepFromScrolling(event) {
  if (drag) event.preventDefault();
}

addEventListener("pointermove", ({ clientX: x, clientY: y }) => {
  if (drag) return follow(x, y);
  if (!press || Math.hypot(x - press.x, y - press.y) < DRAG_FROM) return;
  if (press.byFinger) return endPress();
  begin();
  follow(x, y);
});

addEventListener("pointerup", () => {
  if (drag) drop();
  endPress();
});

addEventListener("pointercancel", () => {
  endDrag();
  endPress();
});

addEventListener("keydown", (event) => {
  if (!drag || event.key !== "Escape") return;
  event.stopPropagation();
  endDrag();
  endPress();
  addEventListener("pointerup", ignoreClick, { capture: true, once: true });
}, true);

for (const name of ["dragstart", "contextmenu"]) {
  // A link would be dragged by the browser, and a long press would open its menu.
  place.addEventListener(name, (event) => (name === "dragstart" || press?.byFinger) && event.target.closest?.(".task[data-moves]") && event.preventDefault());
}

function endPress() {
  clearTimeout(press?.timer);
  press?.card.removeEventListener("touchmove", keepFromScrolling);
  press = null;
}

function begin() {
  const { card, x, y } = press, box = card.getBoundingClientRect();
  const ghost = card.cloneNode(true);
  ghost.classList.add("ghost");
  ghost.inert = true;
  ghost.style.width = `${box.width}px`;
  document.body.append(ghost);
  getSelection().removeAllRanges();
  drag = { task: taskOf(card), moves: movesOf(card), ghost, left: x - box.left, top: y - box.top, x, y };
  document.documentElement.classList.add("drags");
  forgetPress();
  showTargets();
  follow(x, y);
  requestAnimationFrame(scroll);
}

// Also after an update of the page: the card and its column may be others then.
function showTargets() {
  cardOf(drag.task.id)?.classList.add("dragged");
  for (const column of place.querySelectorAll(".column")) column.classList.toggle("target", drag.moves.has(column.dataset.state));
  showOver();
}

function showOver() {
  for (const column of place.querySelectorAll(".column")) column.classList.toggle("over", column === drag.over);
}

function follow(x, y) {
  Object.assign(drag, { x, y });
  drag.ghost.style.transform = `translate(${x - drag.left}px, ${y - drag.top}px)`;
  drag.over = document.elementFromPoint(x, y)?.closest?.("#part-board .column") ?? null;
  showOver();
}

function scroll() {
  if (!drag) return;
  const step = drag.y < EDGE ? -SCROLL_STEP : drag.y > innerHeight - EDGE ? SCROLL_STEP : 0;
  if (step) {
    scrollBy(0, step);
    follow(drag.x, drag.y);
  }
  requestAnimationFrame(scroll);
}

function drop() {
  const { task, over } = drag;
  endDrag();
  ignoreClick();
  if (over && over.dataset.state !== task.shown) move(task, over.dataset.state);
}

// The release may be a click on the title, too, which follows at once.
function ignoreClick() {
  addEventListener("click", preventClick, { capture: true, once: true });
  setTimeout(() => removeEventListener("click", preventClick, true));
}

function preventClick(event) {
  event.preventDefault();
  event.stopPropagation();
}

function endDrag() {
  drag?.ghost.remove();
  drag = null;
  document.documentElement.classList.remove("drags");
  for (const one of place.querySelectorAll(".dragged, .target, .over")) one.classList.remove("dragged", "target", "over");
}

place.addEventListener("kandev:shown", () => {
  if (!drag) return;
  showTargets();
  follow(drag.x, drag.y);
});
