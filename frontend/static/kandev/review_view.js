// How lines are shown: in one column, or before and now side by side where the panel is wide enough. The choice is kept.

import { make } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const KEY = "kandev-diff-view";
const WIDE = 680; // pixels that two columns need
const listeners = [];
let wasSplit = false;

export function whenViewChanges(listener) {
  listeners.push(listener);
}

export function isSplit() {
  return isWide() && wanted() === "split";
}

// Where there is no room for two columns, there is nothing to choose.
export function viewChoice() {
  const group = make("span", "view");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "How lines are shown");
  for (const [view, text] of [["unified", "Unified"], ["split", "Side by side"]]) {
    const made = make("button", "quiet small", text);
    made.type = "button";
    made.value = view;
    made.ariaPressed = String(wanted() === view);
    made.addEventListener("click", () => choose(view));
    group.append(made);
  }
  return [group];
}

function choose(view) {
  try {
    localStorage.setItem(KEY, view);
  } catch {
    kept = view;
  }
  for (const made of panel.querySelectorAll(".view button")) made.ariaPressed = String(made.value === view);
  update();
}

let kept = "unified"; // if the browser keeps nothing

function wanted() {
  try {
    return localStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

function isWide() {
  return panel.clientWidth >= WIDE;
}

function update() {
  panel.classList.toggle("two-columns", isWide());
  if (isSplit() === wasSplit) return;
  wasSplit = isSplit();
  for (const listener of listeners) listener();
}

// What somebody is writing between the lines stays: they are shown in the other way at the next opportunity.
new ResizeObserver(() => {
  const isWriting = [...panel.querySelectorAll(".lines textarea")].some((field) => field.value);
  if (panel.clientWidth && !isWriting) update();
}).observe(panel);
