// Shared parts of the workspace's panels: its state, requests to its API, and small elements.

import { visible } from "./plain_text.js";
import { dateAndTime } from "./times.js";

const token = document.querySelector("#actions [name=csrfmiddlewaretoken]");
const listeners = [];
let status = ""; // of the execution that the panels show

// --- the state of the workspace ---

export function onWorkspace(listener) {
  listeners.push(listener);
}

// Nothing can be read while it starts; afterwards the panels are loaded again.
export function workspaceIs(now) {
  if (now === status) return;
  status = now;
  document.getElementById("session").dataset.workspace = now;
  for (const shown of document.querySelectorAll(".work > .shown")) {
    shown.inert = now === "starting";
    shown.ariaBusy = String(now === "starting");
  }
  if (now !== "starting") listeners.forEach((listener) => listener("state"));
}

// The agent or a user has changed something in it.
export function workspaceChanged() {
  listeners.forEach((listener) => listener("content"));
}

export function isReady() {
  return status === "ready";
}

// --- its API ---

export async function ask(url, { method = "GET", body, headers = {} } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const more = method === "GET" ? {} : { "Content-Type": "application/json", "X-CSRFToken": token.value };
  const response = await fetch(url, { method, headers: { Accept: "application/json", ...more, ...headers }, ...sent });
  const answer = response.status === 204 ? null : await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.message ?? "The workspace does not answer. Try again in a moment."), { code: answer.code });
  return answer;
}

// From the workspace or, if it is not open, from the copy in its repository, which `kept` marks.
export async function look(url) {
  try {
    return await ask(url);
  } catch (error) {
    if (!["agentctl_unreachable", "worktree_missing"].includes(error.code)) throw error;
    return ask(`${url}${url.includes("?") ? "&" : "?"}kept=true`).catch(() => {
      throw error;
    });
  }
}

export function reasonOf(error) {
  return error instanceof SyntaxError || error instanceof TypeError ? "The workspace does not answer. Try again in a moment." : error.message;
}

// --- elements ---

export function origin({ kept }) {
  if (!kept) return [];
  const saved = make("div", "kept");
  saved.append(
    make("p", "", `The workspace is not open. This is its last saved state, from ${dateAndTime(new Date(kept.at))}; it is read-only.`),
    opener(),
  );
  return [saved];
}

// A button that opens the workspace without its agent, if the page offers that.
export function opener() {
  const offered = document.querySelector("#part-controls button[value='workspace_only']");
  return offered ? button("Open the workspace", () => document.querySelector("#part-controls button[value='workspace_only']")?.click(), "small") : "";
}

// Every text is made visible here, whether it comes from a file, an agent, git or the server.
export function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = visible(text);
  return made;
}

export function button(text, act, className = "quiet") {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export function row(...parts) {
  const made = make("p", "buttons");
  made.append(...parts);
  return made;
}

export function note(text) {
  return make("p", "none", text);
}

export function alarm(text) {
  const made = make("p", "refusal", text);
  made.setAttribute("role", "alert");
  return made;
}

export function done(text) {
  const made = make("p", "confirmation", text);
  made.setAttribute("role", "status");
  return made;
}

// Replace the content of a panel; the keyboard focus stays in it.
export function fill(place, parts) {
  const hadFocus = place.contains(document.activeElement);
  place.replaceChildren(...parts);
  if (hadFocus) place.querySelector("button, textarea")?.focus({ preventScroll: true });
}
