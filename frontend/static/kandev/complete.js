// Completion in the composer: "@" offers files of the workspace by a few letters of their path, or one directory at a
// time, and "/" at the beginning of a prompt offers the agent's own commands. A listbox that the keyboard of the text
// field operates.

import { look, make } from "./workspace.js";

const panel = document.getElementById("panel-files");
const text = document.getElementById("text");
const list = document.getElementById("completions");
const MOST = 50;
const FRESH = 5000; // milliseconds for which a directory is not read again
const PAUSE = 120; // milliseconds of typing for which no search is started
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\ufffd]/u; // in a name, it could not be typed as it is shown

let offers = []; // [{ label, detail, value, goesOn }]
let chosen = 0;
let span = null; // [from, to] of the text that a suggestion replaces
let newest = 0; // number of the newest request; an older answer is not shown
let canSearch = true; // an agentctl of an older release cannot
const directories = new Map();

export function begin() {
  text.setAttribute("aria-autocomplete", "list");
  text.setAttribute("aria-controls", list.id);
  text.addEventListener("input", update);
  text.addEventListener("click", update);
  text.addEventListener("keydown", keyed);
  text.addEventListener("blur", () => setTimeout(close, 150)); // after a click on a suggestion
  list.addEventListener("pointerdown", (event) => event.preventDefault()); // the text keeps the focus
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) take([...list.children].indexOf(option));
  });
}

async function update({ detail }) {
  const request = ++newest;
  const found = detail === "history" ? null : wanted();
  if (!found) return close();
  if (span?.[0] !== found.from) hide();
  span = [found.from, text.selectionStart]; // what is shown until the answer replaces all that is typed by then
  try {
    const offered = await found.offer(() => request === newest);
    if (request !== newest) return;
    show(offered);
  } catch {
    if (request === newest) close(); // no workspace is open, or there is no such directory
  }
}

function wanted() {
  if (text.selectionStart !== text.selectionEnd) return null;
  const before = text.value.slice(0, text.selectionStart);
  const path = /(?:^|\s)@([^\s@]*)$/.exec(before);
  if (path) return { from: before.length - path[1].length, offer: (isWanted) => files(path[1], isWanted) };
  const command = /^\/([\w:.-]*)$/.exec(before);
  return command && { from: 1, offer: () => commands(command[1]) };
}

async function files(typed, isWanted) {
  if (!typed || typed.endsWith("/") || !canSearch) return inDirectory(typed);
  await new Promise((resume) => setTimeout(resume, PAUSE));
  if (!isWanted()) return [];
  try {
    const { entries } = await look(`${panel.dataset.files}search/?query=${encodeURIComponent(typed)}`);
    return entries.map(({ path, type }) => ({ label: path, value: written(path, type), goesOn: type === "directory" }));
  } catch (error) {
    if (error.code === "agentctl_outdated") canSearch = false;
    return inDirectory(typed);
  }
}

// As it is written in the prompt: quoted, where it would otherwise seem to end at a space.
function written(path, type) {
  const name = /\s/.test(path) ? `"${path}"` : path;
  return type === "directory" ? name : `${name} `;
}

async function inDirectory(typed) {
  const at = typed.lastIndexOf("/") + 1;
  const start = typed.slice(at).toLowerCase();
  const entries = await directory(typed.slice(0, Math.max(at - 1, 0)));
  const fits = entries.filter(({ name }) => name !== ".git" && !HIDDEN.test(name) && name.toLowerCase().includes(start));
  fits.sort((one, other) => startsWith(other, start) - startsWith(one, start) || one.name.localeCompare(other.name));
  return fits.map(({ name, type }) => {
    const goesOn = type === "directory";
    const path = `${typed.slice(0, at)}${name}${goesOn ? "/" : ""}`;
    return { label: goesOn ? `${name}/` : name, value: written(path, type), goesOn };
  });
}

function startsWith({ name }, start) {
  return Number(name.toLowerCase().startsWith(start));
}

async function directory(path) {
  const known = directories.get(path);
  if (known && Date.now() - known.at < FRESH) return known.entries;
  const { entries } = await look(`${panel.dataset.files}?path=${encodeURIComponent(path)}`);
  directories.set(path, { at: Date.now(), entries });
  return entries;
}

// The page lists them beside the conversation, and keeps that list up to date.
function commands(typed) {
  const start = typed.toLowerCase();
  const listed = [...document.querySelectorAll("#part-agent .commands > div")];
  const known = listed.map((one) => ({ label: one.querySelector("code").textContent, detail: one.querySelector("dd").textContent }));
  const fits = known.filter(({ label }) => label.slice(1).toLowerCase().includes(start));
  return fits.map((one) => ({ ...one, value: `${one.label.slice(1)} `, goesOn: false }));
}

function show(offered) {
  offers = offered.slice(0, MOST);
  chosen = 0;
  list.replaceChildren(...offers.map(option));
  list.hidden = !offers.length;
  mark();
  if (offers.length) document.getElementById("announce").textContent = `${offers.length} suggestions. Use the arrow keys.`;
}

function option({ label, detail }, number) {
  const item = make("li", "", label);
  item.id = `completion-${number}`;
  item.setAttribute("role", "option");
  if (detail) item.append(make("small", "", detail));
  return item;
}

function mark() {
  for (const [number, item] of [...list.children].entries()) item.setAttribute("aria-selected", String(number === chosen));
  if (list.hidden) return text.removeAttribute("aria-activedescendant");
  text.setAttribute("aria-activedescendant", `completion-${chosen}`);
  list.children[chosen].scrollIntoView({ block: "nearest" });
}

function keyed(event) {
  if (list.hidden || event.isComposing) return;
  const { key } = event;
  if (key === "ArrowDown" || key === "ArrowUp") {
    chosen = (chosen + (key === "ArrowDown" ? 1 : offers.length - 1)) % offers.length;
    mark();
  } else if ((key === "Enter" || key === "Tab") && !event.ctrlKey && !event.metaKey && !event.shiftKey) take(chosen);
  else if (key === "Escape") close();
  else return;
  event.preventDefault();
}

function take(number) {
  const { value, goesOn } = offers[number];
  text.setRangeText(value, ...span, "end");
  close();
  text.dispatchEvent(new Event("input", { bubbles: true })); // saves the draft, and opens a directory
  if (!goesOn) close();
}

function close() {
  newest++;
  hide();
}

function hide() {
  offers = [];
  list.hidden = true;
  list.replaceChildren();
  mark();
}
