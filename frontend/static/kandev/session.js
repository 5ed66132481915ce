// A session's page: append to the conversation, keep the parts around it up to date, and send forms
// without leaving the page. Everything also works without this script.

import "./changes.js";
import "./files.js";
import "./terminal.js";
import { append } from "./conversation.js";
import * as attach from "./attach.js";
import * as choices from "./choices.js";
import * as complete from "./complete.js";
import * as search from "./conversation_search.js";
import * as composing from "./composer.js";
import * as draft from "./draft.js";
import * as history from "./history.js";
import * as elapsed from "./elapsed.js";
import { keepLive, listen, partsOf } from "./live.js";
import { visible } from "./plain_text.js";
import { tellPresence } from "./presence.js";
import * as queue from "./queue.js";
import * as reading from "./reading.js";
import * as tabs from "./tabs.js";
import { showLocalTimes } from "./times.js";
import "./turn_ends.js";
import { showKey } from "./waits.js";
import { workspaceChanged, workspaceIs } from "./workspace.js";

const PARTS = ["strip", "banner", "turns", "permissions", "activity", "ledger", "queue", "choices", "now", "refusal", "controls", "waits", "continuity", "agent", "title", "bar"];
const EVERY = 1000;
const EVERY_WITH_SOCKET = 10000;
const AFTER_NEWS = 50;
const AFTER_TEXT = 800; // the text is shown already, but not yet as Markdown
const PATIENCE = 30000; // milliseconds to wait for the response to a form
const HIDDEN = 250; // a hidden page is not drawn
const READING = 700; // milliseconds before a request that appears under the pointer can be answered

const page = document.getElementById("session");
const list = document.getElementById("messages");
const composer = document.getElementById("composer");
const refused = document.getElementById("refused");
const isPast = "past" in page.dataset;
const replaceParts = partsOf(PARTS);

// What gets the focus by Tab is scrolled out from behind the composer, which covers the end of the conversation.
new ResizeObserver(() => {
  document.documentElement.style.scrollPaddingBottom = `${composer.offsetHeight + 16}px`;
  document.documentElement.style.setProperty("--composer", `${composer.offsetHeight}px`);
}).observe(composer);

let lastSeq = Number(page.dataset.lastSeq); // of the log, as far as the server has rendered it for this page
let receivedSeq = lastSeq; // as far as the socket has sent it
let statusSeq = lastSeq;
let settlePlace = null; // keeps the scroll position in the next frame, if text was added since the last one
let settles = false; // a request is pending that may leave no trace in the log
let mayStart = true;
let shownLabel = document.querySelector(".strip").dataset.label;

let socket = null;
const reportPresence = tellPresence((here) => socket?.request("task.session.presence", { here }));
const live = keepLive({
  url: () => `${page.dataset.live}?after=${lastSeq}`,
  every: () => (socket?.isOpen() && !settles ? EVERY_WITH_SOCKET : EVERY),
  apply,
  back: () => socket?.renew(),
});

function apply(answer) {
  const { status } = answer;
  if (status.epoch !== page.dataset.epoch) {
    location.reload();
    return false;
  }
  if (answer.last_seq < lastSeq || status.last_seq < statusSeq) return false; // older than what is shown
  reading.keepingPlace(() => {
    replaceParts(answer.parts);
    elapsed.showElapsed();
    holdNewRequests();
    return isPast ? 0 : reading.showNew(answer.messages);
  });
  lastSeq = answer.last_seq;
  if (answer.messages.length && !isPast) page.dataset.shownSeq = lastSeq; // sessions.js marks it as seen
  statusSeq = status.last_seq;
  settles = status.recovering || status.starting;
  workspaceIs(status.executor_status);
  allowPrompts(answer.can_prompt);
  announce();
  showLocalTimes(document);
  if (answer.start_on_open && mayStart && !document.hidden) startOnce();
  return answer.more;
}

function receive(frame) {
  if (frame.type === "truncated" || (frame.epoch ?? page.dataset.epoch) !== page.dataset.epoch) return location.reload();
  if (frame.type === "hello") reportPresence();
  if (frame.type !== "event") return live.soon();
  receivedSeq = Math.max(receivedSeq, frame.seq);
  if (!isPast && !settlePlace) {
    settlePlace = reading.placeKeeper();
    document.hidden ? setTimeout(keepPlace, HIDDEN) : requestAnimationFrame(keepPlace);
  }
  if (frame.event === "session.workspace.changed") workspaceChanged();
  const isShown = !isPast && append(frame);
  if (frame.seq > lastSeq) live.soon(isShown ? AFTER_TEXT : AFTER_NEWS);
}

// Text is appended as it arrives, but the layout is updated once per frame.
function keepPlace() {
  settlePlace(0);
  settlePlace = null;
}

function allowPrompts(allowed) {
  for (const one of composer.querySelectorAll("textarea, .main, #send-now, #attach")) one.disabled = !allowed;
}

function announce() {
  const label = document.querySelector(".strip").dataset.label;
  if (label !== shownLabel) document.getElementById("announce").textContent = `Session: ${label}`;
  shownLabel = label;
  document.title = document.title.replace(/^(\(!\) )?/, document.getElementById("permissions") ? "(!) " : "");
}

// --- requests of the agent ---

// An agent can withdraw a request and make another one just as somebody clicks. What appears on an open page cannot be
// answered at once, so that no click meant for something else becomes an answer.
const firstSeen = new Map(requests().map((form) => [form.dataset.key, -READING]));

function requests() {
  return [...document.querySelectorAll(".asks[data-key]")];
}

function holdNewRequests() {
  for (const form of requests()) {
    const { key } = form.dataset;
    if (!firstSeen.has(key)) firstSeen.set(key, performance.now());
    const rest = firstSeen.get(key) + READING - performance.now();
    if (rest <= 0) continue;
    form.inert = true;
    setTimeout(() => (form.inert = false), rest);
  }
}

// --- actions of the user ---

async function send(action, body) {
  body.set("csrfmiddlewaretoken", composer.elements.csrfmiddlewaretoken.value);
  const response = attach.files().length && action === composer.action ? await attach.post(action, body) : await fetch(action, { method: "POST", body, headers: { Accept: "application/json" }, redirect: "manual", signal: AbortSignal.timeout(PATIENCE) });
  if (response.status === 403) return { message: "You may not do this, or you have logged in again since: reload the page." };
  const isTold = response.status === 409 || response.headers.has("Retry-After"); // the response has a message for the user
  if (!response.ok && !isTold) throw new Error(String(response.status));
  return response.json();
}

function tell(text, isError = true) {
  refused.textContent = visible(text);
  refused.classList.toggle("error", isError);
  refused.hidden = !text;
}

function startOnce() {
  mayStart = false;
  const body = new FormData();
  body.set("mode", "auto");
  send(page.dataset.resume, body).then(() => live.soon(), () => {});
}

// The form of the single buttons, and those of the agent's questions, which appear and disappear.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("#actions, #wait-form, .asks, .setting, .queued-edit")) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new FormData(form, button);
  const say = button.closest("#talk") ? composing.tell : tell; // where the button is
  button.disabled = !button.matches(".move"); // pressed twice, it moves a prompt twice; disabled, it would lose the focus
  try {
    const answer = await send(button.hasAttribute("formaction") ? button.formAction : form.action, body);
    say(answer.message ?? "");
    const shown = shownNow(form);
    markFields(shown, answer.fields ?? {});
    if (answer.key_html) showKey(answer.key_html);
    if (form.matches(".setting")) forgetChoice(shown);
    if (form.matches(".queued-edit")) {
      queue.answered(form, answer);
      replaceParts.forget("queue"); // an update before this answer has left the form with the version that was edited
    }
    if (button.name === "mode" && !answer.message) reading.follow(); // the banner with "Resume session" is far above the end
  } catch {
    say("The server did not answer. Your request may have been received; the page shows the result when it reconnects.");
  }
  button.disabled = false;
  live.soon();
});

// The form that replaces this one: the page may have been updated before the response arrived.
function shownNow(form) {
  const { key } = form.dataset;
  return (key && !form.isConnected && document.querySelector(`form[data-key="${CSS.escape(key)}"]`)) || form;
}

// A change that is rejected before the next update leaves these parts unchanged, so they are replaced in any case.
function settingChanged() {
  for (const part of ["agent", "choices"]) replaceParts.forget(part);
  live.soon();
}

// A submitted value need not be kept: the next update shows the server's state.
function forgetChoice(form) {
  for (const option of form.querySelectorAll("option")) option.defaultSelected = option.selected;
  settingChanged();
}

// Show the error at each field of an agent's question, and focus the first one.
function markFields(form, problems) {
  for (const field of form.querySelectorAll(".question-field")) {
    const problem = problems[field.dataset.input] ?? "";
    field.querySelector(".error").textContent = visible(problem);
    const input = field.matches("fieldset") ? field : field.querySelector("[name]");
    problem ? input.setAttribute("aria-invalid", "true") : input.removeAttribute("aria-invalid");
  }
  form.querySelector("[aria-invalid] [name], [name][aria-invalid]")?.focus();
}

// Following the link that an agent asks for is the answer; the browser opens it.
document.addEventListener("click", (event) => {
  const form = event.target.closest("a[data-opens]")?.closest("form");
  form?.requestSubmit(form.querySelector("button[value=accept]"));
});

composer.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { submitter } = event;
  if (draft.isOnItsWay() || !(await choices.settled()) || draft.isOnItsWay()) return; // submitted twice meanwhile
  draft.sending();
  const files = attach.files(), body = new FormData(composer);
  if (submitter?.name) body.set(submitter.name, submitter.value); // an update may have removed the button
  try {
    const answer = await sendPrompt(body);
    composing.tell(answer.message ?? answer.note ?? "", { isError: Boolean(answer.message) });
    draft.settled({ nextId: answer.next_message_id, wasRefused: true });
    if (answer.next_message_id) {
      attach.sent(files);
      mayStart = false;
      reading.follow();
    }
  } catch {
    draft.settled();
    composing.tell("The server did not answer. You can safely send it again; it is delivered only once.", { retryWith: submitter });
  }
  live.soon();
});

// A prompt to an agent that waits for a permission ends its turn, so ask for confirmation first.
async function sendPrompt(body) {
  const answer = await send(composer.action, body);
  if (answer.code !== "permission_pending") return answer;
  if (!confirm(`${visible(answer.message)}\n\nSend anyway?`)) return {};
  body.set("ends_permission", "1");
  return send(composer.action, body);
}

composer.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    composer.requestSubmit(event.shiftKey ? document.getElementById("send-now") : null);
  }
});

socket = listen({
  path: () => `${page.dataset.socket}?after=${Math.max(lastSeq, receivedSeq)}&epoch=${page.dataset.epoch}`,
  onFrame: receive,
  onEnd: live.end,
});

showLocalTimes(document);
workspaceIs(page.dataset.workspace);
draft.begin();
composing.begin();
attach.begin(composing.tell);
choices.begin({ send, tell: composing.tell, changed: settingChanged });
complete.begin();
history.begin(page.dataset.history);
queue.begin();
search.begin();
reading.begin();
elapsed.begin(page.dataset.now);
tabs.begin();
if (!isPast && !location.hash && list.childElementCount) reading.toEnd();
