// Comments on lines of changed files: a form at the line, all comments above the changes, and one button that sends them.
//
// A click on a line's number, or the button below a file's lines, opens the form; a click with Shift, or "to line", makes
// it a range. What is entered is kept while the panel is replaced.

import { newId } from "./draft.js";
import { counted, visible } from "./plain_text.js";
import { placeBelow, whenLinesShown } from "./review_lines.js";
import { alarm, ask, button, done, make, note, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const place = document.getElementById("comments");
const address = `${panel.dataset.review}comments/`;
const mayWrite = "commits" in panel.dataset;
const STATES = { outdated: "Outdated: these lines have changed since.", unknown: "Whether these lines have changed since is not known." };
const GUTTER = 14; // characters that the numbers of a line take
const forms = new Map(); // place of a form that is open: its element, kept while the panel is replaced
let comments = [];
let sending = null; // what a request that may have to be repeated sends: its message_id and the ids of the comments
let start = null; // the line that a click with Shift continues from

// --- the list above the changes ---

export async function showComments(...notes) {
  try {
    comments = (await ask(address)).comments;
  } catch (error) {
    notes = [...notes, alarm(reasonOf(error))];
  }
  draw(notes);
  for (const lines of panel.querySelectorAll(".lines")) markLines(lines);
}

function draw(notes = []) {
  const waiting = comments.filter(({ pending }) => pending), sent = comments.filter(({ pending }) => !pending);
  const parts = [];
  if (waiting.length) parts.push(make("h3", "", `Comments to send (${waiting.length})`), listOf(waiting), ...(mayWrite ? [sender(waiting)] : []));
  if (sent.length) parts.push(folded(sent));
  const hadFocus = place.contains(document.activeElement);
  place.replaceChildren(...notes, ...parts);
  place.hidden = !place.childElementCount;
  if (hadFocus) (place.querySelector("button, summary") ?? document.getElementById("tab-changes")).focus({ preventScroll: true });
}

function listOf(shown) {
  const list = make("ul", "remarks");
  list.append(...shown.map(remark));
  return list;
}

function folded(sent) {
  const made = document.createElement("details");
  made.append(make("summary", "", `Sent comments (${sent.length})`), listOf(sent.toReversed()));
  return made;
}

function remark(comment) {
  const item = make("li", "remark");
  const head = make("p", "where");
  head.append(make("span", "path", comment.path), `, ${rangeOf(comment)}`, make("small", "", ` ${comment.author}`));
  item.append(head, make("pre", "excerpt", shortened(comment.excerpt)), make("p", "said", comment.text));
  if (comment.lines in STATES) item.append(make("p", `none ${comment.lines}`, STATES[comment.lines]));
  if (!comment.pending || comment.prompt_state) item.append(note(comment.delivery));
  if (comment.pending && mayWrite) item.append(actions(comment, item));
  return item;
}

function shortened(excerpt) {
  const lines = excerpt.split("\n");
  return lines.length > 6 ? [...lines.slice(0, 5), "…"].join("\n") : excerpt;
}

function actions(comment, item) {
  const about = visible(`the comment on ${comment.path}, ${rangeOf(comment)}`);
  const remove = button("Delete", () => change(item, () => ask(`${address}${comment.id}/`, { method: "DELETE" })), "quiet small");
  remove.setAttribute("aria-label", visible(`Delete ${about}`));
  if (!comment.own) return row(remove);
  const edit = button("Edit", () => item.replaceWith(editor(comment)), "quiet small");
  edit.setAttribute("aria-label", visible(`Edit ${about}`));
  return row(edit, remove);
}

function editor(comment) {
  const item = make("li", "remark");
  const form = make("form", "remark-form");
  const [label, text] = textField(comment.text);
  form.append(label, text, row(make("button", "main small", "Save"), button("Cancel", () => draw(), "quiet small")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change(item, () => ask(`${address}${comment.id}/`, { method: "PATCH", body: { text: text.value } }));
  });
  item.append(make("p", "where", `${comment.path}, ${rangeOf(comment)}`), form);
  queueMicrotask(() => text.focus());
  return item;
}

async function change(item, act) {
  try {
    await act();
    await showComments();
  } catch (error) {
    item.querySelector(".refusal")?.remove();
    item.append(alarm(reasonOf(error)));
  }
}

// Repeating the request with the same message_id sends nothing twice.
function sender(waiting) {
  const send = button(`Send ${counted(waiting.length, "comment")}`, async () => {
    send.disabled = true;
    const ids = waiting.map(({ id }) => id);
    if (String(sending?.comments) !== String(ids)) sending = { message_id: newId(), comments: ids };
    try {
      await ask(`${address}send/`, { method: "POST", body: sending });
      sending = null;
      showComments(done(`${counted(waiting.length, "comment")} sent as one prompt.`));
    } catch (error) {
      if (error.code) sending = null; // refused, so nothing was sent
      showComments(alarm(reasonOf(error)));
    }
  }, "main");
  return row(send, make("small", "", "As one prompt, with file and lines of each."));
}

function rangeOf({ side, first_line, last_line }) {
  const lines = first_line === last_line ? `line ${first_line}` : `lines ${first_line} to ${last_line}`;
  return side === "old" ? `${lines} before the change` : lines;
}

// --- at the lines of a file ---

whenLinesShown((lines, file) => {
  lines.dataset.version = file.version ?? "";
  lines.dataset.file = file.path;
  markLines(lines);
  if (!mayWrite) return;
  lines.classList.add("takes-comments");
  const open = button("Comment on a line", () => openForm(lines, firstLine(lines)), "quiet small");
  open.classList.add("open-comment");
  open.setAttribute("aria-label", `Comment on a line of ${visible(file.path)}`);
  lines.append(open);
  for (const form of forms.values()) if (form.dataset.path === file.path) put(form, lines);
  lines.addEventListener("click", (event) => clicked(event, lines));
});

// Only a click on the number: the text of a line can be selected and copied as before.
function clicked(event, lines) {
  const line = event.target.closest("[data-line]");
  if (!line || event.target !== line) return;
  const width = parseFloat(getComputedStyle(line).paddingLeft) || GUTTER;
  if (event.clientX - line.getBoundingClientRect().left > width) return;
  event.preventDefault();
  getSelection()?.removeAllRanges();
  if (event.shiftKey && start?.path === line.dataset.path && start.side === line.dataset.side) {
    const numbers = [start.line, Number(line.dataset.line)].sort((a, b) => a - b);
    return extend(lines, start, numbers);
  }
  openForm(lines, { path: line.dataset.path, side: line.dataset.side, line: Number(line.dataset.line) });
}

function firstLine(lines) {
  const { path, side, line } = (lines.querySelector(".plus[data-line], .minus[data-line]") ?? lines.querySelector("[data-line]")).dataset;
  return { path, side, line: Number(line) };
}

function extend(lines, { path, side, line }, [first, last]) {
  const form = forms.get(keyOf(path, side, line)) ?? openForm(lines, { path, side, line });
  form.elements.first_line.value = first;
  form.elements.last_line.value = last;
  put(form, lines);
  form.elements.text.focus();
}

function keyOf(path, side, line) {
  return JSON.stringify([path, side, line]);
}

function openForm(lines, { path, side, line }) {
  start = { path, side, line };
  const key = keyOf(path, side, line);
  const form = forms.get(key) ?? formFor(key, { path, side, line, lines });
  forms.set(key, form);
  put(form, lines);
  form.elements.text.focus();
  return form;
}

function formFor(key, { path, side, line, lines }) {
  const form = make("form", "remark-form");
  Object.assign(form.dataset, { path, side, id: newId(), version: lines.dataset.version });
  const [label, text] = textField("");
  const close = () => {
    forms.delete(key);
    const back = form.closest(".lines")?.querySelector(".open-comment");
    form.remove();
    back?.focus({ preventScroll: true });
  };
  form.append(
    numberField("first_line", side === "old" ? "Line before the change" : "Line", line), numberField("last_line", "to line", line),
    label, text, make("div", "result"), row(make("button", "main small", "Add comment"), button("Cancel", close, "quiet small")),
  );
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !text.value) close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    add(form, close);
  });
  return form;
}

// Repeating the request with the same id adds nothing twice.
async function add(form, close) {
  const { path, side, id, version } = form.dataset;
  const [first, last] = ["first_line", "last_line"].map((name) => Number(form.elements[name].value));
  const seen = textOf(form.closest(".lines"), side, first, last);
  const send = form.querySelector("button.main");
  send.disabled = true;
  try {
    const body = { id, path, side, first_line: first, last_line: last, text: form.elements.text.value };
    await ask(address, { method: "POST", body: seen === null ? body : { ...body, excerpt: seen, version } });
    close();
    await showComments();
  } catch (error) {
    form.querySelector(".result").replaceChildren(alarm(reasonOf(error)));
  }
  send.disabled = false;
}

// The lines as they are shown; null if some of them are not, so that the server reads them.
function textOf(lines, side, first, last) {
  if (!lines || last < first || last - first > 200) return null;
  const found = [];
  for (let number = first; number <= last; number += 1) {
    const line = lines.querySelector(`[data-side="${side}"][data-line="${number}"] .code`);
    if (!line) return null;
    found.push(line.textContent.replace(/\n$/, ""));
  }
  return found.join("\n");
}

// Below the last line of its range, or below all lines if that is not shown.
function put(form, lines) {
  const last = Number(form.elements.last_line.value);
  const line = lines.querySelector(`[data-side="${form.dataset.side}"][data-line="${last}"]`);
  if (line) placeBelow(line, form);
  else lines.append(form);
}

function markLines(lines) {
  for (const old of lines.querySelectorAll(".remark")) old.remove();
  for (const comment of comments) {
    if (!comment.pending || comment.path !== lines.dataset.file || comment.lines === "outdated") continue;
    const line = lines.querySelector(`[data-side="${comment.side}"][data-line="${comment.last_line}"]`);
    if (!line) continue;
    const shown = make("div", "remark");
    shown.append(make("small", "", `${comment.author}, ${rangeOf(comment)}`), make("p", "said", comment.text));
    placeBelow(line, shown);
  }
}

// --- fields ---

let fields = 0;

function textField(value) {
  const text = document.createElement("textarea");
  Object.assign(text, { id: `comment-${++fields}`, name: "text", rows: 3, required: true, maxLength: 4000, value });
  const label = make("label", "", "Comment");
  label.htmlFor = text.id;
  return [label, text];
}

function numberField(name, words, value) {
  const label = make("label", "number", words);
  const field = document.createElement("input");
  Object.assign(field, { type: "number", name, min: 1, max: 100000000, required: true, value });
  label.append(" ", field);
  return label;
}
