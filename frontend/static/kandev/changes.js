// The Changes panel: the whole branch, uncommitted changes, the latest commits, and a form to commit.

import { showComments } from "./comments.js";
import { commitForm, goToCommitForm, readSelectable, tick } from "./commit_form.js";
import { coloured } from "./diffs.js";
import { counted, visible } from "./plain_text.js";
import { hasFocusInReview, review } from "./review.js";
import { choosePart, chosenPart, ofPart, whenPartChosen } from "./review_parts.js";
import { isShown, whenShown } from "./tabs.js";
import { dateAndTime } from "./times.js";
import { undoButton } from "./undo.js";
import { loadViewed } from "./viewed.js";
import { alarm, ask, button, done, fill, look, make, note, onWorkspace, origin, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const place = document.getElementById("changes");
const mayCommit = "commits" in panel.dataset;
const GROUPS = [
  ["conflicted", "In conflict"],
  ["staged", "Staged"],
  ["unstaged", "Not staged"],
  ["untracked", "New"],
];
const PIECE = 10; // commits
const MOST_OPEN = 30; // files; longer lists are folded at first
const unfolded = new Set(); // lists that the user has unfolded

let shown = 0; // number of the request that is shown; an older answer does not replace a newer one

whenShown("changes", () => shown || showChanges());
whenPartChosen(() => (isShown("changes") ? showChanges() : (shown = 0)));
onWorkspace((what) => {
  const isBusy = () => what === "content" && isReadingOrWriting();
  if (isBusy()) sayChanged();
  else isShown("changes") ? loadChanges([], isBusy) : (shown = 0);
});

// Do not replace a diff that the user is reading, or a message that the user is writing.
function isReadingOrWriting() {
  return Boolean(place.querySelector(":scope > .diff")) || [...panel.querySelectorAll("textarea")].some((field) => field.value) || hasFocusInReview();
}

function sayChanged() {
  if (place.querySelector(".since")) return;
  const said = row(make("span", "", "The workspace has changed since."), button("Show it as it is now", () => showChanges(), "quiet small"));
  said.classList.add("since");
  said.setAttribute("role", "status");
  place.prepend(said);
}

function showChanges(...notes) {
  return loadChanges(notes);
}

// isBusy(): whether the user has begun to read or write something that is not to be replaced any more.
async function loadChanges(notes, isBusy = () => false) {
  const number = ++shown, told = notes.filter((part) => part instanceof Node);
  const replaceList = (parts) => number === shown && (isBusy() ? sayChanged() : fill(place, parts));
  showComments();
  try {
    const [status, log, branch, selectable] = await Promise.all([
      look(`${panel.dataset.git}status/`), look(`${panel.dataset.git}log/?limit=${PIECE}`), wholeBranch(), readSelectable(),
    ]);
    replaceList([head(status, isCommittable(status)), ...told, ...pieces(status, branch(), selectable), ...history(log)]);
  } catch (error) {
    replaceList([...told, alarm(reasonOf(error)), row(button("Refresh", showChanges, "small"))]);
  }
}

// Without it, because its agentctl is too old for example, everything else is still shown.
async function wholeBranch() {
  try {
    const [found] = await Promise.all([look(ofPart(panel.dataset.review)), loadViewed()]);
    if (found.base) offerMerge(found.ahead !== 0);
    return () => review(found);
  } catch (error) {
    const whole = chosenPart() === "branch" ? [] : [row(button("Show the whole branch", () => choosePart("branch"), "small"))];
    return () => [note(`The changes of the branch cannot be shown. ${reasonOf(error)}`), ...whole];
  }
}

// What is not committed cannot be merged.
function offerMerge(isSomething) {
  const link = document.getElementById("merge-link");
  if (!link) return;
  link.hidden = !isSomething;
  link.parentElement.hidden = [...link.parentElement.children].every((one) => one.hidden);
}

function head({ branch }, isCommittable) {
  const commit = isCommittable ? [button("Commit…", goToCommitForm, "quiet small")] : [];
  return row(make("span", "place", branch ?? "No branch is checked out"), ...commit, button("Refresh", showChanges, "quiet small"));
}

function isCommittable(status) {
  return mayCommit && !status.kept && !status.conflicted.length && GROUPS.some(([key]) => status[key].length);
}

function pieces(status, branch, selectable) {
  const groups = GROUPS.filter(([key]) => status[key].length).flatMap(([key, title]) => group(title, key, status, selectable));
  const contents = status.clean ? [note("No uncommitted changes.")] : groups;
  const cut = status.truncated ? [note("The list is too long to show completely.")] : [];
  const conflicts = status.conflicted.length ? [alarm("A merge has conflicts. Resolve them in the terminal, or ask the agent to, before you commit.")] : [];
  const commit = isCommittable(status) ? [commitForm(selectable, showChanges)] : [];
  const inside = (status.submodules ?? []).flatMap((one) => submodule(one, status.kept));
  return [...origin(status), ...conflicts, ...branch, ...contents, ...cut, ...commit, ...inside];
}

// What has changed inside a submodule is in no commit of the repository around it.
function submodule({ path, files, count, problem }, kept) {
  const list = make("ul", "changed");
  for (const file of files) {
    const item = document.createElement("li");
    item.append(fileButton(file, file.side));
    list.append(item);
  }
  const more = count > files.length ? [note(`And ${count - files.length} more.`)] : [];
  const next = kept
    ? "This work returns into the submodule when the workspace is restored."
    : "Commit these files inside the submodule first, in the terminal, or ask the agent to. Then its new commit can be selected above. Snapshots contain this work.";
  const contents = problem ? [alarm(`Kandev cannot look into it: ${problem}`)] : [list, ...more, note(next)];
  return [make("h3", "", `Inside the submodule ${path} (${count})`), ...contents];
}

function group(title, key, { [key]: entries, kept }, selectable) {
  const list = make("ul", "changed");
  for (const entry of entries) {
    const changed = typeof entry === "string" ? { path: entry, change: "new" } : entry;
    const item = document.createElement("li");
    item.append(key === "conflicted" || !mayCommit || kept ? "" : tick(changed.path, key, selectable), fileButton(changed, key));
    if (mayCommit && !kept && !changed.path.endsWith("/")) item.append(undoButton(changed.path, key, show, showChanges));
    list.append(item);
  }
  const heading = `${title} (${entries.length})`;
  return entries.length > MOST_OPEN ? [foldedList(key, heading, list)] : [make("h3", "", heading), list];
}

// The form below it would be far away.
function foldedList(key, heading, list) {
  const details = make("details"), summary = make("summary");
  summary.append(make("h3", "", heading));
  details.append(summary, list);
  details.open = unfolded.has(key);
  details.addEventListener("toggle", () => (details.open ? unfolded.add(key) : unfolded.delete(key)));
  return details;
}

function fileButton({ path, change = "", from = "" }, key) {
  const file = button("", () => showDiff(path, key), "quiet");
  const mark = make("span", `mark ${change}`, change[0]?.toUpperCase() ?? "!");
  mark.ariaHidden = "true";
  file.append(mark, make("span", "path", from ? `${path} ← ${from}` : path));
  file.title = change.replace("_", " ") || "in conflict";
  return file;
}

function show(parts) {
  ++shown;
  fill(place, parts);
}

async function showDiff(path, key) {
  const number = ++shown;
  const back = button("← All changes", () => showChanges(), "quiet small");
  try {
    const parts = key === "untracked" ? await newFile(path) : await difference(path, key);
    if (number === shown) fill(place, [row(back, make("span", "place", path)), ...parts]);
  } catch (error) {
    if (number === shown) fill(place, [row(back), alarm(reasonOf(error))]);
  }
}

async function difference(path, key) {
  const diff = await look(`${panel.dataset.git}diff/?path=${encodeURIComponent(path)}`);
  const text = key === "staged" ? diff.staged : diff.unstaged;
  const cut = diff.truncated ? [note("Only the beginning is shown.")] : [];
  return [text ? coloured(text) : note("This file no longer has changes."), ...cut];
}

async function newFile(path) {
  const file = await look(`${document.getElementById("panel-files").dataset.files}content/?path=${encodeURIComponent(path)}`);
  if (file.binary) return [note(`Binary file, ${counted(file.size, "byte")}.`)];
  return [coloured(file.content.replace(/\n$/, "").replace(/^/gm, "+"))];
}

function history({ commits, more }) {
  if (!commits.length) return [];
  const list = make("ol", "commits");
  list.append(...commits.map(commitLine));
  const further = button("Older commits", async () => {
    try {
      const next = await look(`${panel.dataset.git}log/?limit=${PIECE}&skip=${list.childElementCount}`);
      list.append(...next.commits.map(commitLine));
      if (!next.more) further.remove();
    } catch (error) {
      further.replaceWith(alarm(reasonOf(error)));
    }
  }, "quiet small");
  return [make("h3", "", "Recent commits"), list, more ? further : ""];
}

function commitLine({ id, subject, author, at, body }) {
  const item = document.createElement("li");
  const open = make("a", "subject", subject || "Without a subject");
  open.href = `changes/?of=commit:${id}`;
  open.dataset.changesOf = `commit:${id}`;
  open.title = "Show what this commit has changed";
  item.append(open, make("small", "", `${id.slice(0, 8)} · ${author} · ${dateAndTime(new Date(at))}`));
  if (body) item.title = visible(body);
  return item;
}
