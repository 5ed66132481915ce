// The single keys of the session page. Which key does what is in one table (sessions_app/navigation/rules/shortcuts.py),
// which the list behind `?` shows and this script reads from it.

import { visible } from "./plain_text.js";

const GUARD = 1000; // milliseconds for which a request must have been the one that a key answers

const dialog = document.getElementById("keys");
const actions = new Map([...dialog.querySelectorAll("[data-shortcut]")].map(({ dataset }) => [dataset.shortcut, dataset.action]));

const ACTIONS = {
  compose: () => document.getElementById("text")?.focus(),
  allow: () => answer("allow"),
  reject: () => answer("reject"),
  stop,
  nextSession: () => step(1),
  previousSession: () => step(-1),
  find: () => document.getElementById("find-opener")?.click(),
  search,
  list: () => dialog.showModal(),
};

document.addEventListener("keydown", (event) => {
  const act = ACTIONS[actions.get(event.key)];
  if (!act || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]") || event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], #terminal")) return;
  event.preventDefault();
  act();
});

function tell(text) {
  document.getElementById("announce").textContent = text;
}

// --- answers to requests ---

// A key answers the card that has the focus, or else the first one; only if all of it that matters is on the screen, and
// only if it has been that card, with the same content, for a moment: a key that was meant for another card answers nothing.
const place = document.getElementById("part-permissions");
let named = "", since = 0;

function cardInFocus() {
  return document.activeElement?.closest?.(".asks[data-key]");
}

function noteCard() {
  const card = cardInFocus() ?? place.querySelector(".asks[data-key]");
  const name = card ? `${card.dataset.key} ${card.elements.resume_token?.value}` : "";
  if (name !== named) since = performance.now();
  named = name;
  return card;
}

new MutationObserver(noteCard).observe(place, { childList: true, subtree: true });
document.addEventListener("focusin", noteCard);
noteCard();

function answer(wanted) {
  const card = noteCard();
  const button = card?.querySelector(`button[data-key-action=${wanted}]`);
  if (!button || button.disabled || card.inert) return;
  if (performance.now() - since < GUARD) return tell("This request has only just appeared. Read it, then press the key again.");
  const isRead = isOnScreen(button) && (cardInFocus() === card || isOnScreen(card.querySelector("h2")));
  if (isRead) return button.click();
  card.scrollIntoView({ block: card.offsetHeight < innerHeight / 2 ? "center" : "start" });
  button.focus({ preventScroll: true });
  tell("Here is the request. Read it, then press the key again.");
}

// Neither scrolled away nor covered, for example by the composer.
function isOnScreen(element) {
  const { left, top, width, height } = element.getBoundingClientRect();
  const shown = document.elementFromPoint(left + Math.min(width / 2, 40), top + height / 2);
  return shown !== null && (element.contains(shown) || shown.contains(element));
}

// --- the agent and other sessions ---

function stop() {
  const button = document.querySelector("button[form=actions][formaction$='/cancel/']") ?? document.querySelector("button[form=actions][formaction$='/stop/']");
  if (button && confirm(visible(`${button.textContent.trim()}?`))) button.click();
}

function search() {
  const { q } = document.getElementById("conversation-search").elements;
  q.focus();
  q.select();
}

function step(by) {
  const links = [...document.querySelectorAll("#part-session-list a.title")];
  const at = links.findIndex((link) => link.ariaCurrent === "page");
  const to = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  if (links[to]) location.assign(links[to].href);
}
