// The board: filter, selection and keyboard shortcuts.

import { selectTask } from "./board_tasks.js";

const SEARCH_PAUSE = 250;
const KEYS = "kandev-keys";
const place = document.getElementById("part-board");
const filters = document.getElementById("filters");
const bulk = document.getElementById("bulk");
const keys = document.getElementById("keys");

// --- filter ---

function query() {
  const given = new URLSearchParams(new FormData(filters));
  for (const [name, value] of [...given]) if (!value.trim()) given.delete(name);
  return String(given) ? `?${given}` : "";
}

function look() {
  const wanted = query();
  place.dataset.live = place.dataset.live.split("?")[0] + wanted;
  bulk.setAttribute("action", bulk.getAttribute("action").split("?")[0] + wanted); // not .action: the form's buttons have that name
  history.replaceState(null, "", wanted || location.pathname);
  document.getElementById("filter-none").hidden = !wanted;
  place.dispatchEvent(new CustomEvent("kandev:look"));
}

if (filters) {
  let timer;
  filters.querySelector("button").hidden = true; // the filter is applied while the user types
  filters.addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });
  filters.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, SEARCH_PAUSE);
  });
  if (query() !== location.search) look(); // chosen before this script ran, or kept by the browser over a reload
}

// --- more tasks of a column ---

place.addEventListener("click", (event) => {
  const link = event.target.closest(".show-more");
  if (!link || !filters || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const column = link.closest(".column");
  const shown = new Set([...column.querySelectorAll(".task")].map((card) => card.dataset.key));
  filters.elements[link.dataset.state].value = link.dataset.limit;
  look();
  // The first task that was not there before gets the focus, because the link may be gone; but not from a user who has
  // gone elsewhere meanwhile.
  const focusNew = () => {
    const now = place.querySelector(`.column[data-state="${link.dataset.state}"]`), focused = document.activeElement;
    const isHere = focused === document.body || now?.contains(focused);
    const added = [...(now?.querySelectorAll(".task") ?? [])].find((card) => !shown.has(card.dataset.key));
    if (isHere && !added) return;
    place.removeEventListener("kandev:shown", focusNew);
    if (isHere) added.querySelector(".title").focus({ preventScroll: true });
  };
  place.addEventListener("kandev:shown", focusNew);
});

// --- selection ---

const MOST_NAMED = 3; // commands that a stop would end

const boxes = () => [...place.querySelectorAll("input[name=session]")];

function count() {
  const chosen = boxes().filter((box) => box.checked);
  const processes = chosen.reduce((sum, box) => sum + Number(box.dataset.processes ?? 0), 0);
  const commands = chosen.flatMap((box) => (box.dataset.commands ?? "").split("\n")).filter(Boolean).slice(0, MOST_NAMED);
  const more = commands.length && processes > commands.length ? [`${processes - commands.length} more`] : [];
  const named = commands.length ? `: ${[...commands, ...more].join("; ")}` : "";
  const ends = processes ? `; stopping ends ${processes} ${processes === 1 ? "process" : "processes"} that agents have left running${named}` : "";
  document.getElementById("bulk-count").textContent = chosen.length ? `${chosen.length} selected${ends}` : "";
}

place.addEventListener("change", count);
place.addEventListener("kandev:shown", count);
bulk.addEventListener("reset", () => setTimeout(count));
count();

// --- keyboard shortcuts ---

const keysOn = document.getElementById("keys-on");
keysOn.checked = localStorage.getItem(KEYS) !== "off";
keysOn.addEventListener("change", () => localStorage.setItem(KEYS, keysOn.checked ? "on" : "off"));

const titles = () => [...place.querySelectorAll(".task > .title")];

function step(by) {
  const all = titles();
  const card = document.activeElement?.closest?.(".task");
  const at = all.indexOf(card?.querySelector(".title"));
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  all[next]?.focus();
}

function select() {
  const card = document.activeElement?.closest?.(".task");
  const mine = [...(card?.querySelectorAll("input[name=session]") ?? [])];
  const all = mine.every((box) => box.checked);
  for (const box of mine) box.checked = !all;
  count();
}

function newTask() {
  const form = document.getElementById("new-task");
  if (!form) return;
  form.open = true;
  form.querySelector("input[name=title]").focus();
}

const ACTS = {
  j: () => step(1),
  k: () => step(-1),
  x: select,
  t: () => selectTask(false),
  T: () => selectTask(true),
  m: () => document.activeElement?.closest?.(".task")?.querySelector(".move")?.click(),
  n: newTask,
  "/": () => document.getElementById("filter-q")?.focus(),
  "?": () => keys.showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing && filters?.contains(typing)) typing.blur();
  if (typing || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!ACTS[event.key] || (!keysOn.checked && event.key !== "?")) return;
  event.preventDefault();
  ACTS[event.key]();
});

document.querySelector("[data-dialog=keys]").addEventListener("click", (event) => {
  event.preventDefault();
  keys.showModal();
});
