// The Files panel: a tree whose directories are read when they are opened, and the selected file.

import { between } from "./diffs.js";
import { counted, visible } from "./plain_text.js";
import { isShown, whenShown } from "./tabs.js";
import { alarm, ask, button, done, fill, look, make, note, onWorkspace, origin, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-files");
const place = document.getElementById("files");
const mayWrite = "writes" in panel.dataset;
const tree = make("div", "tree"), top = make("div"), content = make("div", "content");

let isFilled = false;
let editing = false;
let chosen = 0; // number of the newest request for a file; an older answer does not replace a newer one
let hasFailed = false; // the tree shows an error
const newest = new WeakMap(); // the newest request for a folder; an older answer does not replace a newer one
const RETRY = 5000;

whenShown("files", () => isFilled || showTree());
onWorkspace((what) => {
  if (editing || (what === "content" && content.childElementCount && !hasFailed)) return;
  isShown("files") ? showTree() : (isFilled = false);
});

// --- the tree ---

async function showTree() {
  isFilled = true;
  const open = new Set([...tree.querySelectorAll("[aria-expanded=true]")].map((one) => one.dataset.path));
  if (!place.contains(tree)) fill(place, [top, tree, content]);
  await showDirectory("", tree, open);
}

async function showDirectory(path, into, open = new Set()) {
  const number = (newest.get(into) ?? 0) + 1;
  newest.set(into, number);
  try {
    const folder = await look(`${panel.dataset.files}?path=${encodeURIComponent(path)}`);
    if (number !== newest.get(into)) return;
    hasFailed = false;
    const entries = folder.entries.filter(({ name }) => name !== ".git").sort(foldersFirst);
    const list = document.createElement("ul");
    list.append(...entries.map((entry) => line(path, entry, open)));
    fill(into, [entries.length ? list : note("Empty."), folder.truncated ? note("The list is too long to show completely.") : ""]);
    if (!path) fill(top, [...origin(folder), mayWrite && !folder.kept ? row(button("New file", () => newFile(), "small")) : ""]);
  } catch (error) {
    if (number !== newest.get(into)) return;
    // A workspace that is opening responds a moment later, which clears the error.
    hasFailed = true;
    setTimeout(() => hasFailed && number === newest.get(into) && isShown("files") && showTree(), RETRY);
    fill(into, [alarm(reasonOf(error)), row(button("Refresh", () => showDirectory(path, into), "small"))]);
  }
}

function foldersFirst(one, other) {
  return (other.type === "directory") - (one.type === "directory") || one.name.localeCompare(other.name);
}

function line(parent, { name, type, size }, open) {
  const path = parent ? `${parent}/${name}` : name;
  const item = document.createElement("li");
  if (type !== "directory") {
    const file = button(name, () => showFile(path), "quiet");
    file.dataset.path = path;
    if (size !== null) file.title = counted(size, "byte");
    item.append(file);
    return item;
  }
  const inner = make("div", "inner");
  const folder = button(`${name}/`, () => unfold(folder, inner), "quiet folder");
  folder.dataset.path = path;
  folder.ariaExpanded = "false";
  item.append(folder, inner);
  if (open.has(path)) unfold(folder, inner, open);
  return item;
}

function unfold(folder, inner, open) {
  const opens = folder.ariaExpanded !== "true";
  folder.ariaExpanded = String(opens);
  if (opens) showDirectory(folder.dataset.path, inner, open);
  else inner.replaceChildren();
}

// --- the selected file ---

function contentOf(path, more = "") {
  return `${panel.dataset.files}content/?path=${encodeURIComponent(path)}${more}`;
}

async function showFile(path, ...notes) {
  const number = ++chosen;
  editing = false;
  for (const one of tree.querySelectorAll("button")) one.ariaCurrent = one.dataset.path === path ? "true" : null;
  try {
    const file = await look(contentOf(path, "&highlight=true"));
    if (number !== chosen) return;
    const edits = mayWrite && !file.kept && !file.binary && file.hash ? button("Edit", () => edit(path, file.content, file.hash), "small") : "";
    fill(content, [head(path, edits), ...notes, ...origin(file), ...textOf(file)]);
  } catch (error) {
    if (number === chosen) fill(content, [head(path), alarm(reasonOf(error))]);
  }
}

function textOf(file) {
  const size = counted(file.size, "byte");
  if (file.binary) return [note(`This is a binary file (${size}), so it is not shown.`)];
  const text = make("pre", "code");
  if (file.html) text.innerHTML = file.html; // generated and escaped by the server
  else text.textContent = visible(file.content);
  text.tabIndex = 0;
  const cut = file.truncated ? [note(`The file is large (${size}). Only the beginning is shown, and you cannot edit it here.`)] : [];
  return [...cut, file.size ? text : note("The file is empty.")];
}

function head(path, ...more) {
  return row(make("span", "place", path), ...more, button("Close", () => close(), "quiet small"));
}

function close() {
  editing = false;
  chosen += 1;
  fill(content, []);
  for (const one of tree.querySelectorAll("[aria-current]")) one.ariaCurrent = null;
}

// --- editing ---

function newFile() {
  const form = make("form", "new-file");
  const label = make("label", "", "Path of the new file");
  const name = document.createElement("input");
  Object.assign(name, { id: "new-file-path", required: true, placeholder: "docs/notes.md", spellcheck: false });
  label.htmlFor = name.id;
  form.append(label, name, row(make("button", "main small", "Create"), button("Cancel", () => close(), "small")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    edit(name.value.trim().replace(/^\/+/, ""), "", null);
  });
  fill(content, [form]);
  name.focus();
}

// The hash of the content that was read is sent with a write, so that a file changed meanwhile is not overwritten.
function edit(path, before, hash, after = before, ...notes) {
  editing = true;
  const text = make("textarea", "editor");
  text.value = after;
  text.rows = Math.min(30, after.split("\n").length + 4);
  text.spellcheck = false;
  text.setAttribute("aria-label", `Content of ${visible(path)}`);
  const save = button("Save", () => write(path, before, hash, text, save), "main small");
  const stop = button("Cancel", () => (hash === null ? close() : showFile(path)), "small");
  fill(content, [row(make("span", "place", path)), ...notes, text, row(save, stop)]);
  text.focus();
}

async function write(path, before, hash, text, save) {
  save.disabled = true;
  content.querySelector(".conflict, .refusal")?.remove();
  try {
    const headers = hash === null ? {} : { "If-Match": hash };
    const { created } = await ask(contentOf(path), { method: "PUT", body: { content: text.value }, headers });
    showFile(path, done(created ? "File created." : "Saved."));
    if (created) showTree();
  } catch (error) {
    if (error.code === "conflict") await offerWays(path, text, error);
    else text.after(alarm(reasonOf(error)));
  }
  save.disabled = false;
}

async function offerWays(path, text, error) {
  const ways = make("div", "conflict");
  ways.append(alarm(error.message));
  try {
    const now = await ask(contentOf(path));
    const differs = make("details");
    differs.append(make("summary", "", "Show the differences"), between(now.content, text.value));
    ways.append(
      differs,
      row(
        button("Overwrite it with mine", () => write(path, now.content, now.hash, text, ways.querySelector("button")), "small"),
        button("Discard my changes and reload", () => showFile(path), "small"),
      ),
    );
  } catch (again) {
    ways.append(alarm(reasonOf(again)));
  }
  text.after(ways);
}
