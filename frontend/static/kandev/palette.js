// The palette: what this page can do, and sessions, tasks and pages by what is typed. The input is a combobox: the focus
// stays in it, arrow keys choose, Enter opens. The server searches; what the page can do is found on it.

import { visible } from "./plain_text.js";

const PAUSE = 120; // milliseconds without a key before the server is asked
const MOST_ACTIONS = 8;
const NAME = "palette";

let dialog, input, listed, told, address;
let timer, latest = 0, answered = "", found = [], shown = [], at = -1;
let chosen = null; // what arrow keys have chosen, until something else is typed

export function open(opener, text = "") {
  address = opener.href;
  if (!dialog) build(opener.dataset.style);
  if (dialog.open) return dialog.close();
  input.value = text;
  found = [];
  chosen = null;
  dialog.showModal();
  show();
  ask();
}

function make(tag, values = {}, ...children) {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
}

function build(style) {
  document.head.append(make("link", { rel: "stylesheet", href: style }));
  input = make("input", { type: "text", id: `${NAME}-q`, maxLength: 200, autocomplete: "off", spellcheck: false, placeholder: "Find a session, a task, a page or an action" });
  listed = make("div", { id: `${NAME}-list`, className: "listed" });
  told = make("p", { className: "told" });
  for (const [name, value] of Object.entries({ role: "combobox", "aria-label": "Find", "aria-autocomplete": "list", "aria-controls": listed.id, "aria-expanded": "true" })) input.setAttribute(name, value);
  listed.setAttribute("role", "listbox");
  listed.setAttribute("aria-label", "Results");
  told.setAttribute("role", "status");
  dialog = make("dialog", { className: NAME }, make("div", { className: "search" }, input), listed, told);
  dialog.setAttribute("aria-label", "Find");
  document.body.append(dialog);
  input.addEventListener("input", () => {
    chosen = null;
    show();
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE);
  });
  input.addEventListener("keydown", move);
  dialog.addEventListener("keydown", (event) => event.stopPropagation()); // the page's own keys rest meanwhile
  listed.addEventListener("mousedown", (event) => event.preventDefault()); // the input keeps the focus
  listed.addEventListener("click", (event) => {
    const row = event.target.closest("[role=option]");
    if (row) choose(Number(row.dataset.at), event.ctrlKey || event.metaKey);
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
}

function move(event) {
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 8, PageUp: at - 8 }[event.key];
  if (event.key === "Enter" && !event.isComposing) {
    event.preventDefault();
    if (at >= 0) choose(at, event.ctrlKey || event.metaKey);
  } else if (to !== undefined && shown.length) {
    event.preventDefault();
    const turn = event.key.startsWith("Arrow") && at >= 0;
    select(turn ? (to + shown.length) % shown.length : event.key === "ArrowUp" ? shown.length - 1 : Math.min(Math.max(to, 0), shown.length - 1));
    chosen = shown[at];
  } else if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    dialog.close();
  }
}

// An answer to what was typed earlier is not shown.
async function ask() {
  const mine = (latest += 1);
  const url = new URL(address), text = input.value;
  url.searchParams.set("q", text.trim());
  const answer = await fetch(url, { headers: { Accept: "application/json" }, redirect: "manual", cache: "no-store" })
    .then((response) => (response.ok ? response.json() : null))
    .catch(() => null);
  if (mine !== latest) return;
  [found, answered] = [answer?.groups ?? [], text];
  show();
  if (!answer) tell("The server did not answer. Actions of this page still work.");
}

// --- what this page can do: its buttons for the session, its tabs, and forms that it opens ---

function actions() {
  const buttons = [...document.querySelectorAll("button[form=actions][formaction]")];
  const ofPage = buttons.filter((one) => !one.disabled && !one.closest(".task, .rows, details:not([open])")); // those of rows of a list, or folded away, need their place
  const named = ofPage.filter((one) => !isAmbiguous(one, ofPage)).map((one) => ({ text: nameOf(one), button: one }));
  const tabs = [...document.querySelectorAll("#session [role=tab]")].map((one) => ({ text: `Show: ${nameOf(one)}`, act: () => one.click() }));
  const task = document.getElementById("new-task");
  const create = task ? [{ text: "New task", act: () => begin(task) }] : [];
  const text = document.getElementById("text");
  const write = text ? [{ text: "Write a prompt", act: () => text.focus() }] : [];
  const unique = new Map([...write, ...create, ...named, ...tabs].map((one) => [one.text, one]));
  return [...unique.values()];
}

// Such as *Withdraw* of each queued prompt: which one is meant is said only by its place.
function isAmbiguous(button, all) {
  return all.some((other) => nameOf(other) === nameOf(button) && effect(other) !== effect(button));
}

const effect = ({ formAction, name, value }) => [formAction, name, value].join(" ");

// The page may have drawn the button again since the list was made: then the old one does nothing.
function press(button) {
  const present = actions().find((other) => other.button && nameOf(other.button) === nameOf(button) && effect(other.button) === effect(button));
  if (present) {
    dialog.close();
    return present.button.click();
  }
  show();
  tell(`The page has changed: “${nameOf(button)}” is no longer offered.`);
}

function nameOf(element) {
  return element.textContent.replace(/\s+/g, " ").trim();
}

function begin(details) {
  details.open = true;
  details.querySelector("input[name=title]")?.focus();
}

// --- the list ---

function tell(text) {
  told.textContent = text;
}

const typed = () => input.value.trim().toLowerCase().split(/\s+/);

// Enter on an action acts at once, so the beginnings of its words must have been typed, or arrow keys have chosen it.
function isMeant(text) {
  const words = text.toLowerCase().split(/[^\p{L}\p{N}]+/u);
  return typed().every((part) => words.some((word) => word.startsWith(part)));
}

// What the server found for less than is typed by now.
function stillMatches({ text, note = "" }) {
  return typed().every((part) => `${text} ${note}`.toLowerCase().includes(part));
}

function show() {
  const mine = actions().filter(({ text }) => isMeant(text)).slice(0, MOST_ACTIONS);
  const others = answered === input.value ? found : found.map(({ title, found: items }) => ({ title, found: items.filter(stillMatches) }));
  const groups = [{ title: "On this page", found: mine }, ...others].filter(({ found: items }) => items.length);
  shown = [];
  listed.replaceChildren(...groups.map(group));
  tell(shown.length ? "" : "Nothing matches.");
  select(chosen ? shown.findIndex(isChosen) : shown.length && input.value.trim() ? 0 : -1);
}

const isChosen = ({ text, note, url }) => text === chosen.text && note === chosen.note && url === chosen.url;

// A listbox has options and groups alone, so the group has its title as a label.
function group({ title, found: items }) {
  const head = make("div", { className: "head", ariaHidden: "true", textContent: title });
  const section = make("div", {}, head, ...items.map(row));
  section.setAttribute("role", "group");
  section.setAttribute("aria-label", visible(title));
  return section;
}

function row(item) {
  const made = make("div", { id: `${NAME}-${shown.length}` }, make("span", { textContent: visible(item.text) }));
  made.setAttribute("role", "option");
  made.dataset.at = shown.length;
  if (item.note) made.append(make("span", { className: "meta", textContent: visible(item.note) }));
  if (item.state) made.append(make("span", { className: `pill ${item.tone}`, textContent: item.state }));
  shown.push(item);
  return made;
}

function select(number) {
  at = number;
  for (const row of listed.querySelectorAll("[role=option]")) row.setAttribute("aria-selected", String(Number(row.dataset.at) === at));
  const row = document.getElementById(`${NAME}-${at}`);
  if (row) input.setAttribute("aria-activedescendant", row.id);
  else input.removeAttribute("aria-activedescendant");
  row?.scrollIntoView({ block: "nearest" });
}

function choose(number, inNewTab) {
  const { act, button, url } = shown[number];
  if (url && inNewTab) return window.open(url, "_blank", "noopener");
  if (button) return press(button);
  dialog.close();
  if (act) return act();
  if (new URL(url, location.href).pathname === location.pathname && url.includes("#new-task")) return begin(document.getElementById("new-task"));
  location.assign(url);
}
