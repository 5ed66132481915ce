// Which part of the branch is shown: the whole of it, what is not committed, one of its commits, or one turn of the agent.

import { make } from "./workspace.js";
import { dateAndTime } from "./times.js";

const ORIGINS = { agent: "Begun by the agent", kandev: "Begun by Kandev" };
const PROBLEMS = {
  not_of_branch: "This branch has no such commit.",
  not_stored: "The snapshots around this turn are no longer stored, so what it changed is not known.",
  not_ended: "The turn has not ended.",
  no_snapshot: "No snapshot was recorded at the end of this turn: it changed nothing, or none was taken.",
};
const WHY_NOT = { not_ended: "not ended", no_snapshot: "no changes recorded" };
const NOTE = "Between the snapshots before and after the turn: what others changed meanwhile is included.";
const AGAINST = { uncommitted: "not committed", turn: "changed in this turn" };
const MOST = 60; // characters of a prompt or a subject
const listeners = [];
let chosen = "branch";
let keepsFocus = false; // in the choice, which is replaced with everything else

// The listener is called when the user has chosen another part.
export function whenPartChosen(listener) {
  listeners.push(listener);
}

export function choosePart(name) {
  chosen = name;
  for (const listener of listeners) listener();
}

export function chosenPart() {
  return chosen;
}

// The address with a part: the chosen one, or that of an earlier answer.
export function ofPart(url, part = null) {
  const name = part ? [part.kind, part.id].filter(Boolean).join(":") : chosen;
  if (name === "branch") return url;
  return `${url}${url.includes("?") ? "&" : "?"}of=${name}`;
}

export function againstOf({ kind, id }) {
  return AGAINST[kind] ?? `changed in commit ${id.slice(0, 8)}`;
}

export function partNotes(part) {
  if (part?.problem) return [PROBLEMS[part.problem] ?? "It is not known what this has changed."];
  return part?.kind === "turn" ? [NOTE] : [];
}

export function partChoice({ commits, turns = [] }) {
  const label = make("label", "part", "Show ");
  const select = make("select");
  select.append(option("branch", "The whole branch"), option("uncommitted", "Uncommitted changes"));
  select.append(...group("Commits", (commits ?? []).map(({ id, subject }) => option(`commit:${id}`, `${short(subject)} · ${id.slice(0, 8)}`))));
  select.append(...group("Turns", turns.map(turnOption)));
  if (![...select.options].some(({ value }) => value === chosen)) select.append(option(chosen, chosen.replace(":", " ").slice(0, 15)));
  select.value = chosen;
  select.addEventListener("change", () => {
    keepsFocus = true;
    choosePart(select.value);
  });
  if (keepsFocus) requestAnimationFrame(() => select.focus({ preventScroll: true }));
  keepsFocus = false;
  label.append(select);
  return label;
}

function turnOption({ id, started_at, prompt, origin, problem }) {
  const words = short(prompt) || (ORIGINS[origin] ?? "A turn");
  const made = option(`turn:${id}`, `${dateAndTime(new Date(started_at))} · ${words}${WHY_NOT[problem] ? ` (${WHY_NOT[problem]})` : ""}`);
  made.disabled = problem in WHY_NOT;
  return made;
}

function short(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > MOST ? `${line.slice(0, MOST)}…` : line;
}

function option(value, text) {
  const made = make("option", "", text);
  made.value = value;
  return made;
}

function group(label, options) {
  if (!options.length) return [];
  const made = make("optgroup");
  made.label = label;
  made.append(...options);
  return [made];
}

// A link to the changes of one turn, as at its end in the conversation, chooses it before its tab is opened.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-changes-of]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  choosePart(link.dataset.changesOf);
  document.getElementById("tab-changes")?.click();
}, true);
