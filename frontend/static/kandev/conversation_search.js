// The search field of a conversation: results below it, arrow keys choose, Enter jumps to the message. Afterwards the field
// stays in reach with the place among the results. Without this script the form opens the search page.

import { visible } from "./plain_text.js";
import { leaveEnd } from "./reading.js";
import { showLocalTimes } from "./times.js";

const PAUSE = 200; // milliseconds without a key before the server is asked
const MOST = 50; // results that are listed; the search page has all
const KEPT = "find"; // in the address: what was searched before a jump to another part of the conversation

const form = document.getElementById("conversation-search");
const input = form.elements.q;
const panel = make("div", { className: "found-messages", hidden: true });
const listed = make("div", { id: "found-list", className: "listed" });
const told = make("p", { className: "meta told" });
const place = make("span", { className: "meta place" });
const newer = make("button", { type: "button", className: "small quiet", title: "Newer result", ariaLabel: "Newer result", textContent: "↓", disabled: true });
const older = make("button", { type: "button", className: "small quiet", title: "Older result", ariaLabel: "Older result", textContent: "↑", disabled: true });
const steps = make("span", { className: "result-steps", hidden: true });

let timer, latest = 0, answered = null, found = [], at = -1, shownAt = -1;

export function begin() {
  input.type = "text"; // a search field may not be a combobox
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": listed.id, "aria-expanded": "false" })) input.setAttribute(name, value);
  listed.setAttribute("role", "listbox");
  listed.setAttribute("aria-label", "Messages");
  told.setAttribute("role", "status");
  place.setAttribute("role", "status");
  panel.append(listed, told);
  steps.append(place, older, newer);
  form.append(steps, panel);
  input.addEventListener("input", typed);
  input.addEventListener("focus", () => found.length && answered === input.value.trim() && open());
  form.addEventListener("keydown", keyed);
  form.addEventListener("submit", submitted);
  form.addEventListener("focusout", ({ relatedTarget }) => form.contains(relatedTarget) || close());
  panel.addEventListener("pointerdown", (event) => event.target.closest("a") || event.preventDefault()); // the field keeps the focus
  listed.addEventListener("click", ({ target }) => {
    const row = target.closest("[role=option]");
    if (row) go(Number(row.dataset.at));
  });
  older.addEventListener("click", () => go(shownAt + 1));
  newer.addEventListener("click", () => go(shownAt - 1));
  const kept = new URLSearchParams(location.search).get(KEPT);
  if (kept) resume(kept);
}

function make(tag, values = {}, ...children) {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
}

// --- what is typed ---

function typed() {
  clearTimeout(timer);
  shownAt = -1;
  showPlace();
  if (input.value.trim()) timer = setTimeout(() => ask().then(open), PAUSE);
  else forget();
}

function submitted(event) {
  event.preventDefault();
  clearTimeout(timer);
  if (answered === input.value.trim() && !panel.hidden && found.length) return go(Math.max(at, 0));
  ask().then(open);
}

function keyed(event) {
  if (event.isComposing || event.target !== input) return;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by && found.length) {
    event.preventDefault();
    if (panel.hidden) open();
    else select((at + by + found.length) % found.length);
  } else if (event.key === "Escape") {
    event.preventDefault();
    if (panel.hidden) {
      input.value = "";
      forget();
    }
    close();
  }
}

function forget() {
  latest += 1;
  [found, answered, at, shownAt] = [[], null, -1, -1];
  listed.replaceChildren();
  told.replaceChildren();
  showPlace();
  close();
}

// --- what the server finds ---

// An answer to what was typed earlier is not shown.
async function ask() {
  const mine = (latest += 1), text = input.value.trim();
  const query = new URLSearchParams({ q: text, session: form.elements.session.value, page_size: MOST });
  const answer = await fetch(`${form.dataset.results}?${query}`, { headers: { Accept: "application/json" }, redirect: "manual", cache: "no-store" })
    .then(async (response) => ({ isGood: response.ok, ...(await response.json()) }))
    .catch(() => ({ message: "The server did not answer. Try again." }));
  if (mine !== latest) return;
  [found, answered, at] = [answer.isGood ? answer.results : [], text, -1];
  listed.replaceChildren(...found.map(row));
  told.replaceChildren(...tellOf(answer));
  if (found.length) select(0);
}

function tellOf(answer) {
  if (!answer.isGood) return [visible(answer.message)];
  const parts = [];
  if (!found.length) parts.push("No matches.");
  if (answer.next_page) parts.push(`The newest ${found.length} are listed.`);
  if (answer.index.behind) parts.push("The newest text is not searched yet.");
  const page = new URL(form.action, location.href);
  page.search = new URLSearchParams({ session: form.elements.session.value, q: answered });
  return [`${parts.join(" ")} `, make("a", { href: page, textContent: "Search page" })];
}

function row({ author, at: time, snippet }, number) {
  const when = make("time", { dateTime: time });
  const text = make("span", { className: "snippet" }, ...snippet.map((piece) => (piece.marked ? make("mark", { textContent: visible(piece.text) }) : visible(piece.text))));
  const made = make("div", { id: `found-${number}` }, make("span", { className: "meta" }, `${visible(author)} · `, when), text);
  made.setAttribute("role", "option");
  made.dataset.at = number;
  showLocalTimes(made);
  return made;
}

// --- the list ---

function open() {
  panel.hidden = document.activeElement !== input || answered === null;
  input.setAttribute("aria-expanded", String(!panel.hidden));
}

function close() {
  panel.hidden = true;
  input.setAttribute("aria-expanded", "false");
}

function select(number) {
  at = number;
  for (const option of listed.children) option.setAttribute("aria-selected", String(Number(option.dataset.at) === at));
  const chosen = listed.children[at];
  if (chosen) input.setAttribute("aria-activedescendant", chosen.id);
  else input.removeAttribute("aria-activedescendant");
  chosen?.scrollIntoView({ block: "nearest" });
}

// --- the message ---

// On this page, or on the page with the messages around it, which goes on with the same search.
function go(number) {
  const { message_id: id, url } = found[number];
  const message = document.getElementById(`m-${id}`);
  if (!message) {
    const other = new URL(url, location.href);
    other.searchParams.set(KEPT, answered);
    return location.assign(other);
  }
  shownAt = number;
  select(number);
  close();
  showPlace();
  leaveEnd();
  for (let outer = message; outer; outer = outer.parentElement) if (outer.matches("details")) outer.open = true;
  const own = message.querySelector(":scope > details");
  if (own) own.open = true;
  location.replace(`#m-${id}`); // marks it, too
  message.scrollIntoView({ block: "start", behavior: "instant" });
}

function showPlace() {
  const isShown = shownAt >= 0;
  form.classList.toggle("active", isShown);
  steps.hidden = !isShown;
  place.textContent = isShown ? `${shownAt + 1} of ${found.length}` : "";
  older.disabled = shownAt + 1 >= found.length;
  newer.disabled = shownAt <= 0;
}

async function resume(text) {
  input.value = text;
  await ask();
  const here = found.findIndex(({ message_id: id }) => location.hash === `#m-${id}`);
  if (here >= 0) go(here);
}
