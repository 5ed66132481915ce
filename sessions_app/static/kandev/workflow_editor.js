// The editor of a workflow: what is wrong and how it looks follow the typing; problems and nodes lead to their lines.

const WAIT = 350;

const form = document.getElementById("editor");
const text = document.getElementById("text");
const said = document.getElementById("editor-said");
let timer, asked = 0;

async function ask(what, parts) {
  clearTimeout(timer);
  const number = (asked += 1);
  const body = new FormData(form);
  body.set("do", what);
  const response = await fetch(form.dataset.check, { method: "POST", body, credentials: "same-origin" }).catch(() => null);
  if (!response?.ok) return response?.status === 429 && what === "check" ? later(WAIT * 10) : null;
  const answer = await response.json();
  if (number !== asked) return null; // it was typed on meanwhile, and asked again
  for (const part of parts) document.getElementById(`part-${part}`).innerHTML = answer.parts[part];
  tell(answer.trouble, answer.trouble ? "error" : "");
  return answer;
}

function tell(words, tone) {
  said.textContent = words;
  said.className = `notice ${tone}`;
  said.hidden = !words;
}

function later(wait) {
  clearTimeout(timer);
  timer = setTimeout(() => ask("check", ["check"]), wait);
}

function goTo(line) {
  const lines = text.value.split("\n");
  const begin = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus();
  text.setSelectionRange(begin, begin + (lines[line - 1]?.length ?? 0));
  text.scrollTop = (text.scrollHeight / lines.length) * Math.max(line - 6, 0);
}

async function open(focus) {
  await ask("open", ["check", "settings"]);
  if (focus) document.querySelector("#node-fields input, #node-fields textarea, #node-fields select")?.focus();
}

async function apply() {
  const answer = await ask("apply", ["check", "settings"]);
  if (answer && answer.text !== text.value) text.value = answer.text;
}

text.addEventListener("input", () => later(WAIT));

form.addEventListener("submit", (event) => {
  const what = event.submitter?.value;
  if (!["check", "open", "apply"].includes(what)) return;
  event.preventDefault();
  if (what === "check") ask("check", ["check", "settings"]);
  if (what === "open") open(true);
  if (what === "apply") apply();
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
