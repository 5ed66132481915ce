// The files of the workspace: one directory or one file at a time, read when the panel is opened.

import { alarm, ask, button, fill, look, make, note, origin, reasonOf } from "./workspace.js";

const panel = document.getElementById("files");
const place = document.getElementById("files-shown");
const mayWrite = "writes" in panel.dataset;

panel.addEventListener("toggle", () => {
  if (panel.open) showDirectory("");
});

// While the workspace starts nothing can be read; then what was open is read anew.
export function workspaceStarts(starts) {
  if (panel.inert === starts) return;
  panel.inert = starts;
  panel.ariaBusy = String(starts);
  if (!starts && panel.open && !place.querySelector("textarea")) showDirectory("");
}

async function showDirectory(path) {
  try {
    const folder = await look(`${panel.dataset.files}?path=${encodeURIComponent(path)}`);
    const items = folder.entries.filter(({ name }) => name !== ".git").map((entry) => line(path, entry));
    show(path, path ? parentOf(path) : null, [...origin(folder), listOf(items), folder.truncated ? note("There are more than can be shown.") : ""]);
  } catch (error) {
    show(path, path ? "" : null, [note(reasonOf(error))]);
  }
}

function contentOf(path) {
  return `${panel.dataset.files}content/?path=${encodeURIComponent(path)}`;
}

async function showFile(path) {
  try {
    const file = await look(contentOf(path));
    const content = make("pre", "", file.binary ? `Not a text: ${file.size} bytes` : file.content);
    content.tabIndex = 0;
    const edits = mayWrite && !file.kept && !file.binary && file.hash ? button("Edit", () => edit(path, file)) : "";
    show(path, parentOf(path), [...origin(file), edits, content, file.truncated ? note("Only its beginning is shown.") : ""]);
  } catch (error) {
    show(path, parentOf(path), [note(reasonOf(error))]);
  }
}

// What was read is told with what is written: a file that has changed meanwhile is not overwritten.
function edit(path, file) {
  const text = make("textarea", "editor");
  text.value = file.content;
  text.rows = Math.min(30, file.content.split("\n").length + 2);
  text.setAttribute("aria-label", `Content of ${path}`);
  const told = make("div");
  const save = button("Save", async () => {
    save.disabled = true;
    try {
      await ask(contentOf(path), { method: "PUT", body: { content: text.value }, headers: { "If-Match": file.hash } });
      showFile(path);
    } catch (error) {
      told.replaceChildren(alarm(reasonOf(error)));
      save.disabled = false;
    }
  }, "main");
  const buttons = make("p", "buttons");
  buttons.append(save, button("Cancel", () => showFile(path)));
  fill(place, [make("p", "place", `/${path}`), text, told, buttons]);
  text.focus();
}

function show(path, parent, parts) {
  const back = parent === null ? "" : button("↑ Up", () => showDirectory(parent));
  fill(place, [make("p", "place", `/${path}`), back, ...parts]);
}

function line(path, { name, type }) {
  const full = path ? `${path}/${name}` : name;
  const isDirectory = type === "directory";
  const item = document.createElement("li");
  item.append(button(isDirectory ? `${name}/` : name, () => (isDirectory ? showDirectory(full) : showFile(full))));
  return item;
}

function listOf(items) {
  if (!items.length) return note("Empty.");
  const list = document.createElement("ul");
  list.append(...items);
  return list;
}

function parentOf(path) {
  return path.split("/").slice(0, -1).join("/");
}
