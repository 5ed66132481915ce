// The files of the workspace: one directory or one file at a time, read when the panel is opened.

const panel = document.getElementById("files");
const place = document.getElementById("files-shown");

panel.addEventListener("toggle", () => {
  if (panel.open) showDirectory("");
});

// While the workspace starts nothing can be read; then what was open is read anew.
export function workspaceStarts(starts) {
  if (panel.inert === starts) return;
  panel.inert = starts;
  panel.ariaBusy = String(starts);
  if (!starts && panel.open) showDirectory("");
}

async function read(url) {
  const response = await fetch(url, { headers: { Accept: "application/json" } });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.message ?? "The files cannot be read now.");
  return answer;
}

async function showDirectory(path) {
  try {
    const { entries, truncated } = await read(`${panel.dataset.files}?path=${encodeURIComponent(path)}`);
    const items = entries.filter(({ name }) => name !== ".git").map((entry) => line(path, entry));
    show(path, path ? parentOf(path) : null, [listOf(items), truncated ? note("There are more than can be shown.") : ""]);
  } catch (error) {
    show(path, path ? "" : null, [note(reasonOf(error))]);
  }
}

async function showFile(path) {
  try {
    const file = await read(`${panel.dataset.files}content/?path=${encodeURIComponent(path)}`);
    const content = document.createElement("pre");
    content.tabIndex = 0;
    content.textContent = file.encoding === "utf-8" ? file.content : `Not a text: ${file.size} bytes`;
    show(path, parentOf(path), [content, file.truncated ? note("Only its beginning is shown.") : ""]);
  } catch (error) {
    show(path, parentOf(path), [note(reasonOf(error))]);
  }
}

function show(path, parent, parts) {
  const title = document.createElement("p");
  title.className = "place";
  title.textContent = `/${path}`;
  const back = parent === null ? "" : button("↑ Up", () => showDirectory(parent));
  const hadFocus = place.contains(document.activeElement);
  place.replaceChildren(title, back, ...parts);
  if (hadFocus) place.querySelector("button")?.focus();
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

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function note(text) {
  const made = document.createElement("p");
  made.className = "none";
  made.textContent = text;
  return made;
}

function parentOf(path) {
  return path.split("/").slice(0, -1).join("/");
}

function reasonOf(error) {
  return error instanceof SyntaxError || error instanceof TypeError ? "The files cannot be read now." : error.message;
}
