// A session's page: the conversation grows, the parts around it are kept true, and forms are sent
// without leaving the page. Everything also works without this file.

import { keepLive, keepOpen, partsOf } from "./live.js";
import { showLocalTimes } from "./times.js";
import "./files.js";

const PARTS = ["strip", "banner", "permissions", "ledger", "refusal", "controls", "continuity"];
const EVERY = 1000;

const page = document.getElementById("session");
const list = document.getElementById("messages");
const talk = list.closest(".talk");
const composer = document.getElementById("composer");
const refused = document.getElementById("refused");
const isPast = "past" in page.dataset;
const replaceParts = partsOf(PARTS);

let lastSeq = Number(page.dataset.lastSeq);
let mayStart = true;
let follows = false; // the reader has just sent something, and wants to see what comes of it
let heard = document.querySelector(".strip").dataset.word;

const live = keepLive({ url: () => `${page.dataset.live}?after=${lastSeq}`, every: EVERY, apply });

function apply(answer) {
  if (answer.status.epoch !== page.dataset.epoch) {
    location.reload();
    return false;
  }
  if (answer.last_seq < lastSeq) return false;
  const wasAtEnd = follows || isAtEnd();
  follows = false;
  replaceParts(answer.parts);
  if (!isPast) answer.messages.forEach(showMessage);
  lastSeq = answer.last_seq;
  allowPrompts(answer.can_prompt);
  announce();
  showLocalTimes(document);
  if (wasAtEnd) toEnd();
  if (answer.start_on_open && mayStart) startOnce();
  return answer.more;
}

function showMessage({ id, seq, updated_seq, html }) {
  const shown = document.getElementById(`m-${id}`);
  if (shown && Number(shown.dataset.updated) >= updated_seq) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  const made = template.content.firstElementChild;
  document.getElementById("silence").hidden = true;
  if (shown) {
    keepOpen(shown, made);
    shown.replaceWith(made);
  } else {
    const first = list.firstElementChild;
    if (first && seq < Number(first.dataset.seq)) return; // belongs to the earlier pages
    const later = [...list.children].find((one) => Number(one.dataset.seq) > seq);
    list.insertBefore(made, later ?? null);
  }
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
  if (!response.ok && response.status !== 409) throw new Error(String(response.status));
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
  send(page.dataset.resume, body).then(live.look, () => {});
}

document.getElementById("actions").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.submitter;
  const body = new FormData();
  if (button.name) body.set(button.name, button.value);
  button.disabled = true;
  try {
    const answer = await send(button.formAction, body);
    tell(answer.message ?? "");
  } catch {
    tell("The server did not answer. What you asked may or may not be on its way; the page will show it.");
  }
  button.disabled = false;
  live.look();
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
  live.look();
});

composer.elements.text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    composer.requestSubmit();
  }
});

showLocalTimes(document);
if (!isPast && !location.hash && list.childElementCount) toEnd();
