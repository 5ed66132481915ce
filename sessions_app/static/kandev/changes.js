// What git says of the workspace: what is not committed, the differences, the last commits; and a commit.

import { alarm, ask, button, fill, look, make, note, origin, reasonOf } from "./workspace.js";

const panel = document.getElementById("changes");
const place = document.getElementById("changes-shown");
const mayCommit = "commits" in panel.dataset;
const GROUPS = [
  ["conflicted", "In conflict"],
  ["staged", "Staged"],
  ["unstaged", "Not staged"],
  ["untracked", "New"],
];

let shown = 0; // what is on the page; an older answer does not replace a newer one

panel.addEventListener("toggle", () => {
  if (panel.open) showChanges();
});

// Somebody is reading a difference or writing a message: that is not taken from under their eyes.
export function workspaceChanged() {
  if (panel.open && !place.querySelector("pre") && !place.querySelector("textarea")?.value) showChanges();
}

async function showChanges() {
  const number = ++shown;
  try {
    const [status, log] = await Promise.all([look(`${panel.dataset.git}status/`), look(`${panel.dataset.git}log/?limit=10`)]);
    if (number !== shown) return;
    const groups = GROUPS.filter(([key]) => status[key].length).flatMap(([key, title]) => group(title, key, status[key]));
    const said = status.clean ? [note("Everything is committed.")] : groups;
    const cut = status.truncated ? [note("There are more than can be shown.")] : [];
    const commit = mayCommit && !status.kept && !status.clean && !status.conflicted.length ? [commitForm()] : [];
    fill(place, [head(status), ...origin(status), ...said, ...cut, ...commit, ...history(log)]);
  } catch (error) {
    if (number === shown) fill(place, [note(reasonOf(error)), button("Look again", showChanges)]);
  }
}

function head({ branch }) {
  const line = make("p", "buttons");
  line.append(make("span", "place", branch ?? "No branch is checked out"), button("Look again", showChanges));
  return line;
}

function group(title, key, entries) {
  const list = document.createElement("ul");
  for (const entry of entries) {
    const { path, change = "", from = "" } = typeof entry === "string" ? { path: entry } : entry;
    const item = document.createElement("li");
    const words = `${path}${from ? ` ← ${from}` : ""}${change && change !== "modified" ? ` (${change.replace("_", " ")})` : ""}`;
    item.append(key === "untracked" ? make("span", "new", words) : button(words, () => showDiff(path, key)));
    list.append(item);
  }
  return [make("h3", "", `${title} (${entries.length})`), list];
}

async function showDiff(path, key) {
  const number = ++shown;
  const back = button("← All changes", showChanges);
  try {
    const diff = await look(`${panel.dataset.git}diff/?path=${encodeURIComponent(path)}`);
    if (number !== shown) return;
    const text = key === "staged" ? diff.staged : diff.unstaged;
    const cut = diff.truncated ? note("Only its beginning is shown.") : "";
    fill(place, [back, make("p", "place", path), coloured(text), cut]);
  } catch (error) {
    if (number === shown) fill(place, [back, note(reasonOf(error))]);
  }
}

function coloured(diff) {
  const made = make("pre", "diff");
  made.tabIndex = 0;
  for (const line of diff.split("\n")) {
    const kind = line.startsWith("@@") ? "hunk" : /^\+(?!\+\+ )/.test(line) ? "added" : /^-(?!-- )/.test(line) ? "gone" : "";
    made.append(make("span", kind, `${line}\n`));
  }
  return made;
}

function commitForm() {
  const form = make("form", "commit");
  const label = make("label", "", "Commit all of it");
  const message = document.createElement("textarea");
  message.id = "commit-message";
  message.rows = 2;
  message.required = true;
  message.placeholder = "What has changed, and why";
  label.htmlFor = message.id;
  const told = make("div");
  const send = make("button", "", "Commit");
  form.append(label, message, told, send);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      await ask(`${panel.dataset.git}commit/`, { method: "POST", body: { message: message.value } });
      showChanges();
    } catch (error) {
      told.replaceChildren(alarm(reasonOf(error)));
      send.disabled = false;
    }
  });
  return form;
}

function history({ commits }) {
  if (!commits.length) return [];
  const list = make("ol", "commits");
  for (const { id, subject, author, at } of commits) {
    const item = document.createElement("li");
    item.append(make("span", "", subject), make("small", "", `${id.slice(0, 8)} · ${author} · ${new Date(at).toLocaleString()}`));
    list.append(item);
  }
  return [make("h3", "", "Last commits"), list];
}
