// The workflow editor: checks and draws the text while the user types, and links problems to their lines.

import { visible } from "./plain_text.js";

const CHECK_DELAY = 350; // milliseconds after the last key

const form = document.getElementById("editor");
const text = document.getElementById("text");
const notice = document.getElementById("editor-notice");
let timer, lastRequest = 0;

async function request(action, parts) {
  clearTimeout(timer);
  const number = (lastRequest += 1);
  const body = new FormData(form);
  body.set("do", action);
  const response = await fetch(form.dataset.check, { method: "POST", body, credentials: "same-origin" }).catch(() => null);
  if (!response?.ok) return response?.status === 429 && action === "check" ? checkLater(CHECK_DELAY * 10) : null;
  const answer = await response.json();
  if (number !== lastRequest) return null; // a newer request is under way
  for (const part of parts) document.getElementById(`part-${part}`).innerHTML = answer.parts[part];
  showNotice(answer.trouble, answer.trouble ? "error" : "");
  return answer;
}

function showNotice(message, tone) {
  notice.textContent = visible(message);
  notice.className = `notice ${tone}`;
  notice.hidden = !message;
}

function checkLater(delay) {
  clearTimeout(timer);
  timer = setTimeout(() => request("check", ["check"]), delay);
}

function goTo(line) {
  const lines = text.value.split("\n");
  const begin = lines.slice(0, line - 1).reduce((sum, previous) => sum + previous.length + 1, 0);
  text.focus();
  text.setSelectionRange(begin, begin + (lines[line - 1]?.length ?? 0));
  text.scrollTop = (text.scrollHeight / lines.length) * Math.max(line - 6, 0);
}

async function open(focus) {
  await request("open", ["check", "settings"]);
  if (focus) document.querySelector("#node-fields input, #node-fields textarea, #node-fields select")?.focus();
}

async function apply() {
  const answer = await request("apply", ["check", "settings"]);
  if (answer && answer.text !== text.value) text.value = answer.text;
}

text.addEventListener("input", () => checkLater(CHECK_DELAY));

form.addEventListener("submit", (event) => {
  const action = event.submitter?.value;
  if (!["check", "open", "apply"].includes(action)) return;
  event.preventDefault();
  if (action === "check") request("check", ["check", "settings"]);
  if (action === "open") open(true);
  if (action === "apply") apply();
});

form.addEventListener("change", (event) => {
  if (event.target.id === "node-choice") open(false);
});

document.getElementById("part-check").addEventListener("click", (event) => {
  const link = event.target.closest("[data-line]");
  if (!link) return;
  event.preventDefault();
  goTo(Number(link.dataset.line));
});
