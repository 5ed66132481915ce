// A session's page: the conversation grows, the parts around it are kept true, and forms are sent
// without leaving the page. Everything also works without this file.

import { workspaceChanged } from "./changes.js";
import { append, showMessage } from "./conversation.js";
import { workspaceStarts } from "./files.js";
import { keepLive } from "./live.js";
import { partsOf } from "./parts.js";
import { listen } from "./socket.js";
import { showLocalTimes } from "./times.js";
import { showKey } from "./waits.js";

const PARTS = ["strip", "banner", "permissions", "ledger", "refusal", "controls", "waits", "continuity"];
const EVERY = 1000;
const EVERY_WITH_SOCKET = 10000;
const AFTER_NEWS = 50;
const AFTER_TEXT = 800; // it is shown already, but not yet as Markdown

const page = document.getElementById("session");
const list = document.getElementById("messages");
const talk = list.closest(".talk");
const composer = document.getElementById("composer");
const refused = document.getElementById("refused");
const isPast = "past" in page.dataset;
const replaceParts = partsOf(PARTS);

let lastSeq = Number(page.dataset.lastSeq); // of the log, as far as the server has rendered it for us
let heardSeq = lastSeq; // as far as the socket has told it
let statusSeq = lastSeq;
let settles = false; // something is on its way of which the log may say nothing
let mayStart = true;
let follows = false; // the reader has just sent something, and wants to see what comes of it
let heard = document.querySelector(".strip").dataset.word;

let socket = null;
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
  keepingTheEnd(() => {
    replaceParts(answer.parts);
    if (!isPast) answer.messages.forEach(showMessage);
  });
  lastSeq = answer.last_seq;
  statusSeq = status.last_seq;
  settles = status.recovering || status.starting;
  workspaceStarts(status.executor_status === "starting");
  allowPrompts(answer.can_prompt);
  announce();
  showLocalTimes(document);
  if (answer.start_on_open && mayStart && !document.hidden) startOnce();
  return answer.more;
}

function hear(frame) {
  if (frame.type === "truncated" || (frame.epoch ?? page.dataset.epoch) !== page.dataset.epoch) return location.reload();
  if (frame.type !== "event") return live.soon();
  heardSeq = Math.max(heardSeq, frame.seq);
  if (frame.event === "session.workspace.changed") workspaceChanged();
  let isShown = false;
  if (!isPast) keepingTheEnd(() => (isShown = append(frame)));
  if (frame.seq > lastSeq) live.soon(isShown ? AFTER_TEXT : AFTER_NEWS);
}

// A reader who is at the end stays there.
function keepingTheEnd(change) {
  const wasAtEnd = follows || isAtEnd();
  follows = false;
  change();
  if (wasAtEnd) toEnd();
}

function allowPrompts(allowed) {
  for (const one of composer.querySelectorAll("textarea, button")) one.disabled = !allowed;
}

function announce() {
  const word = document.querySelector(".strip").dataset.word;
  if (word !== heard) document.getElementById("announce").textContent = `Session: ${word}`;
  heard = word;
  document.title = document.title.replace(/^(\(!\) )?/, document.getElementById("permissions") ? "(!) " : "");
}

function isAtEnd() {
  return talk.getBoundingClientRect().bottom <= window.innerHeight + 120;
}

function toEnd() {
  // Not scrollIntoView: that would also move the place from which the Tab key goes on.
  window.scrollBy({ top: talk.getBoundingClientRect().bottom - window.innerHeight + 16 });
}

// --- what the reader does ---

async function send(action, body) {
  body.set("csrfmiddlewaretoken", composer.elements.csrfmiddlewaretoken.value);
  const response = await fetch(action, { method: "POST", body, headers: { Accept: "application/json" }, redirect: "manual" });
  if (response.status === 403) return { message: "This is not for you to do, or you have logged in anew: reload the page." };
  const isTold = response.status === 409 || response.headers.has("Retry-After"); // the server says itself what is wrong
  if (!response.ok && !isTold) throw new Error(String(response.status));
  return response.json();
}

function tell(text) {
  refused.textContent = text;
  refused.hidden = !text;
}

function startOnce() {
  mayStart = false;
  const body = new FormData();
  body.set("mode", "auto");
  send(page.dataset.resume, body).then(() => live.soon(), () => {});
}

// The form of the buttons that stand alone, and those of the agent's questions, which come and go.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("#actions, #wait-form, .asks")) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new FormData(form, button);
  button.disabled = true;
  try {
    const answer = await send(button.hasAttribute("formaction") ? button.formAction : form.action, body);
    tell(answer.message ?? "");
    if (answer.key_html) showKey(answer.key_html);
  } catch {
    tell("The server did not answer. What you asked may or may not be on its way; the page will show it.");
  }
  button.disabled = false;
  live.soon();
});

composer.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { text, message_id: messageId } = composer.elements;
  try {
    const answer = await send(composer.action, new FormData(composer));
    tell(answer.message ?? "");
    if (answer.next_message_id) {
      messageId.value = answer.next_message_id;
      text.value = "";
      mayStart = false;
      follows = true;
    }
  } catch {
    tell("The server did not answer. Your text is still here; sending it again is safe, it is delivered once.");
  }
  live.soon();
});

composer.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    composer.requestSubmit();
  }
});

socket = listen({
  path: () => `${page.dataset.socket}?after=${Math.max(lastSeq, heardSeq)}&epoch=${page.dataset.epoch}`,
  hear,
  ended: live.end,
});

showLocalTimes(document);
if (!isPast && !location.hash && list.childElementCount) toEnd();
