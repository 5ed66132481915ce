// Keep a page up to date: receive events over a WebSocket, request changes when it announces them, otherwise at
// intervals while the page is visible, replace the parts that have changed, and continue through restarts of the server.

import { showLocalTimes } from "./times.js";

const FIRST_REQUEST_PAUSE = 1000;
const FIRST_SOCKET_PAUSE = 500;
const LONGEST_PAUSE = 5000; // a restart takes a few seconds
const PAUSE_WHEN_TOO_MANY = 30000;
const PATIENCE = 15000;
const LONGEST_PRESS = 10000; // a release outside of the window may never be reported
const PRESS_CHECK = 20;
const ACK_EVERY = 3000;
const ACK_AT = 500; // events: timers of a hidden page are slow

const LOGGED_OUT = "You are logged out. Reload the page to log in.";
const GONE = "This no longer exists, or you no longer have access to it.";
const ENDS = { 4401: LOGGED_OUT, 4404: GONE };
const TOO_MANY = 4429;

const connection = document.getElementById("connection");

function showConnection(text) {
  connection.textContent = text;
  connection.hidden = !text;
}

// While the server does not respond, the pills show that their state is unknown, and the sentence about the session,
// which promises to queue prompts, is hidden; afterwards they show it again.
const STATUS = "#part-bar > .pill, .strip > div:not(.wide) .pill, .chips .pill, .rows:not(.places) > li > .pill";

function markUnknown(word) {
  document.documentElement.toggleAttribute("data-unknown", Boolean(word));
  for (const pill of document.querySelectorAll(STATUS)) {
    const known = pill.dataset.known === undefined ? [pill.textContent, pill.className] : JSON.parse(pill.dataset.known);
    [pill.textContent, pill.className] = word ? [word, "pill ask"] : known;
    if (word) pill.dataset.known = JSON.stringify(known);
    else delete pill.dataset.known;
  }
}

// Reduced by up to a half, so that the pages of a restarted server do not all reconnect at once.
export function jittered(wait) {
  return wait * (1 - Math.random() / 2);
}

// url(): what to request. apply(answer): returns true to request again at once. every(): milliseconds until
// the next request. back(): the server responds again. Answers are handled one at a time, in order.
export function keepLive({ url, apply, every, back = () => {} }) {
  let timer, due = Infinity, busy = false, ended = false, failures = 0;

  // Request within `wait` milliseconds; a request that is due sooner stays due.
  function soon(wait = 0) {
    const at = performance.now() + wait;
    if (ended || at >= due) return;
    due = at;
    clearTimeout(timer);
    if (!busy) timer = setTimeout(requestChanges, wait);
  }

  function requestAfter(wait) {
    const wished = due;
    due = Infinity;
    if (wished < Infinity) soon(Math.max(0, Math.min(wait, wished - performance.now())));
    else if (!document.hidden) soon(wait);
  }

  function end(text) {
    ended = true;
    clearTimeout(timer);
    showConnection(text);
    markUnknown("Unknown");
  }

  async function requestChanges() {
    due = Infinity;
    busy = true;
    const answer = await fetchAnswer(url()).catch(() => null);
    await pointerReleased();
    busy = false;
    if (ended) return;
    if (answer?.over) return end(answer.over);
    if (!answer) return retryLater();
    showConnection("");
    if (failures) {
      markUnknown("");
      back();
    }
    failures = 0;
    let more = false;
    try {
      more = apply(answer.json);
    } catch (error) {
      reportError(error);
    }
    requestAfter(more ? 0 : every());
  }

  function retryLater() {
    failures += 1;
    showConnection("Reconnecting… What you see may be out of date.");
    markUnknown("Reconnecting");
    due = Infinity;
    soon(jittered(Math.min(FIRST_REQUEST_PAUSE * 1.5 ** failures, LONGEST_PAUSE)));
  }

  document.addEventListener("visibilitychange", () => document.hidden || soon());
  window.addEventListener("online", () => soon());
  soon(every());
  return { soon, end };
}

// A button that is replaced between its press and its release takes no click, so the page is not updated meanwhile.
let pressedAt = -Infinity;

addEventListener("pointerdown", () => (pressedAt = performance.now()), true);
for (const name of ["pointerup", "pointercancel"]) {
  addEventListener(name, () => setTimeout(() => (pressedAt = -Infinity)), true); // the click follows at once
}

// For a drag, which goes on when the page is updated.
export function forgetPress() {
  pressedAt = -Infinity;
}

async function pointerReleased() {
  while (performance.now() - pressedAt < LONGEST_PRESS) await new Promise((resume) => setTimeout(resume, PRESS_CHECK));
}

async function fetchAnswer(url) {
  const response = await fetch(url, {
    headers: { Accept: "application/json" },
    redirect: "manual",
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  if (response.type === "opaqueredirect") return { over: LOGGED_OUT };
  if (response.status === 404) return { over: GONE };
  if (!response.ok) throw new Error(String(response.status));
  return { json: await response.json() };
}

// --- events over a WebSocket ---

// The page itself requests what it misses while there is no socket.
// path(): the address, for each connection. onFrame(frame): called with each frame. onEnd(text): called at the final end.
export function listen({ path, onFrame, onEnd }) {
  let socket = null, greeted = false, over = false, failures = 0, timer, ackTimer;
  const unacked = new Map(); // session: last seq
  let count = 0;

  // A socket that is being closed accepts nothing more, although its `onclose` has not been called yet.
  const isOpen = () => greeted && socket.readyState === WebSocket.OPEN;

  function connect() {
    clearTimeout(timer);
    if (socket || over) return;
    socket = new WebSocket(new URL(path(), location.origin.replace(/^http/, "ws")));
    socket.onmessage = ({ data }) => receive(JSON.parse(data));
    socket.onclose = ({ code }) => closed(code);
  }

  function receive(frame) {
    if (frame.type === "hello") {
      greeted = true;
      failures = 0;
    }
    if (frame.type === "event") noteUnacked(frame);
    if (frame.type === "response") return; // to an unimportant request
    onFrame(frame);
  }

  function noteUnacked({ session_id: session, seq }) {
    unacked.set(session, seq);
    count += 1;
    if (count >= ACK_AT) acknowledge();
    else ackTimer ??= setTimeout(acknowledge, ACK_EVERY);
  }

  function acknowledge() {
    clearTimeout(ackTimer);
    ackTimer = undefined;
    count = 0;
    if (isOpen()) for (const [session, seq] of unacked) socket.send(JSON.stringify({ type: "ack", session_id: session, seq }));
    unacked.clear();
  }

  function closed(code) {
    const wasOpen = greeted;
    socket = null;
    greeted = false;
    unacked.clear();
    if (code in ENDS) {
      over = true;
      return onEnd(ENDS[code]);
    }
    failures += 1;
    const pause = code === TOO_MANY ? PAUSE_WHEN_TOO_MANY : Math.min(FIRST_SOCKET_PAUSE * 2 ** failures, LONGEST_PAUSE);
    timer = setTimeout(connect, jittered(pause));
    if (wasOpen) onFrame({ type: "closed" });
  }

  // The server can be reached again: an earlier socket may be dead without having noticed.
  function renew() {
    if (greeted) socket.close();
    else connect();
  }

  // Send a request to the server; false while there is no socket.
  function request(action, payload) {
    if (!isOpen()) return false;
    socket.send(JSON.stringify({ type: "request", id: 0, action, payload }));
    return true;
  }

  connect();
  return { renew, request, isOpen };
}

// --- parts of the page ---

const CONTROLS = "input, select, textarea";

// Return the function that replaces parts of the page, each only when it has changed; open details, what the user has
// entered, the focus and the place of the caret are kept. Its forget(name) replaces a part the next time even if it is unchanged.
export function partsOf(names) {
  const shown = new Map();
  const replace = (parts) => {
    for (const name of names) {
      if (shown.get(name) === parts[name]) continue;
      replaceInside(document.getElementById(`part-${name}`), parts[name]);
      shown.set(name, parts[name]);
    }
  };
  replace.forget = (name) => shown.delete(name);
  return replace;
}

function replaceInside(place, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  keepOpen(place, template.content);
  keepEntered(place, template.content);
  keepProblems(place, template.content);
  showLocalTimes(template.content); // before the layout: a longer time could need another line, and move the page
  const focus = place.contains(document.activeElement) ? focusOf(document.activeElement) : null;
  keepEdited(place, template.content); // moves forms, which takes the focus from them
  place.replaceChildren(template.content);
  if (focus) focusAgain(place, focus);
}

function focusOf(element) {
  const caret = element.selectionStart ?? null; // null too in a field for numbers, which does not know it
  return { name: nameOf(element), about: element.closest("[data-key]")?.dataset.key, caret, end: element.selectionEnd };
}

// What had the focus gets it again; a button that is gone, or disabled at the end of a list, leaves it to its neighbour.
function focusAgain(place, { name, about, caret, end }) {
  const all = [...place.querySelectorAll("a, button, summary, input, select, textarea")].filter((one) => !one.disabled);
  const same = all.find((one) => nameOf(one) === name);
  const near = all.find((one) => about && one.tagName === "BUTTON" && one.closest("[data-key]")?.dataset.key === about);
  (same ?? near)?.focus({ preventScroll: true });
  if (same && caret !== null) same.setSelectionRange(caret, end);
}

// What the user has entered and not sent yet: text, ticks and choices that differ from what the server last showed.
function keepEntered(before, after) {
  const arrived = new Map([...after.querySelectorAll(CONTROLS)].map((control) => [controlName(control), control]));
  for (const control of before.querySelectorAll(CONTROLS)) {
    const same = arrived.get(controlName(control));
    if (same && isTouched(control)) enter(control, same);
  }
}

function controlName(control) {
  const about = control.closest("[data-key]")?.dataset.key;
  return [about, control.getAttribute("form"), control.name || control.id, isBox(control) ? control.value : ""].join(" ");
}

function isBox(control) {
  return control.type === "checkbox" || control.type === "radio";
}

function isTouched(control) {
  if (control.options) return [...control.options].some((option) => option.selected !== option.defaultSelected);
  return isBox(control) ? control.checked !== control.defaultChecked : control.value !== shownAtFirst(control);
}

// A text area gives each line end as \n, also where the server's text has another one.
function shownAtFirst(control) {
  return control.matches("textarea") ? control.defaultValue.replace(/\r\n?/g, "\n") : control.defaultValue;
}

function enter(control, same) {
  if (isBox(control)) same.checked = control.checked;
  else if (!same.options || [...same.options].some((option) => option.value === control.value)) same.value = control.value;
}

// The server's error messages for the fields of an agent's question.
function keepProblems(before, after) {
  for (const form of before.querySelectorAll("form[data-key]")) {
    const same = after.querySelector(`form[data-key="${CSS.escape(form.dataset.key)}"]`);
    for (const problem of same ? form.querySelectorAll(".question-field .error[id]:not(:empty)") : []) {
      const about = `[aria-describedby~="${CSS.escape(problem.id)}"]`;
      same.querySelector(`#${CSS.escape(problem.id)}`)?.replaceChildren(problem.textContent);
      if (form.querySelector(`[aria-invalid]${about}`)) same.querySelector(about)?.setAttribute("aria-invalid", "true");
    }
  }
}

// A text that the user is changing stays with its form, which names the version that they saw. If it cannot be saved any
// more, because the prompt was sent, the form stays too, until the user has taken or discarded its text.
function keepEdited(before, after) {
  for (const form of before.querySelectorAll("form.queued-edit")) {
    const { text } = form.elements;
    if (!isTouched(text)) continue;
    const same = after.querySelector(`form.queued-edit[data-key="${CSS.escape(form.dataset.key)}"]`);
    if (same) same.replaceWith(form);
    else after.append(form.closest(".unsaved") ?? unsaved(form));
  }
}

function unsaved(form) {
  const card = document.createElement("section");
  const note = document.createElement("p");
  card.className = "card unsaved";
  note.setAttribute("role", "alert");
  note.textContent = "This prompt left the queue before your change was saved. Your text is still here.";
  form.querySelector(".buttons").replaceChildren(button("use-text", "Move it to “Your prompt”"), " ", button("drop-text", "Discard"));
  card.append(note, form);
  return card;
}

function button(className, label) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className: `small ${className}`, textContent: label });
  return made;
}

function keepOpen(before, after) {
  for (const details of before.querySelectorAll("details[data-key][open]")) {
    const same = after.querySelector(`details[data-key="${CSS.escape(details.dataset.key)}"]`);
    if (same) same.open = true;
  }
}

function nameOf(element) {
  const about = element.closest("[data-key]")?.dataset.key; // two permissions may offer the same answers
  return [about, element.tagName, element.name, element.href ?? element.getAttribute("formaction"), element.options ? element.id : element.value, element.textContent].join(" ");
}
