// Commit selected files, exactly as they were listed: each check box carries the version of its change.

import { visible } from "./plain_text.js";
import { alarm, ask, button, done, make, note, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const place = document.getElementById("changes");
const CONTENTS = { staged: "staged", unstaged: "file", untracked: "file" };

let draft = ""; // the message, when the list is shown again

// What can be committed, or nothing with the `problem` that prevents it; null if its agentctl is of an earlier release,
// which commits files by their names alone.
export async function readSelectable() {
  if (!("commits" in panel.dataset)) return null;
  return ask(`${panel.dataset.review}commit/`).catch((error) => (error.code === "agentctl_outdated" ? null : { files: [], problem: reasonOf(error) }));
}

// A check box for a file of one of the lists; `selectable` is what readSelectable has returned.
export function tick(path, key, selectable) {
  const box = make("input", "select-file");
  Object.assign(box, { type: "checkbox", checked: true, value: path });
  box.dataset.content = CONTENTS[key];
  box.setAttribute("aria-label", `Commit ${visible(path)}`);
  if (!selectable) return box;
  const found = selectable.files.find((file) => file.path === path && file.content === CONTENTS[key]);
  box.dataset.version = found?.version ?? "";
  box.disabled = Boolean(selectable.operation) || !found?.version;
  box.checked = Boolean(selectable.operation) || Boolean(found?.version);
  box.title = box.checked ? "" : visible(found?.problem || selectable.problem || "It has changed just now. Refresh to select it.");
  box.addEventListener("change", () => {
    selectTwin(box);
    tellSelected();
  });
  return box;
}

// Of a partly staged file, the one that is not staged is the whole file.
function selectTwin(box) {
  const wanted = box.dataset.content === "file" ? "staged" : "file";
  const twin = boxes().find((other) => other.value === box.value && other.dataset.content === wanted && !other.disabled);
  if (twin && box.checked === (wanted === "staged")) twin.checked = box.checked;
}

function boxes() {
  return [...place.querySelectorAll("input.select-file")];
}

function selectableBoxes() {
  return boxes().filter((box) => !box.disabled);
}

function tellSelected() {
  const chosen = boxes().filter((box) => box.checked).length;
  const isAny = selectableBoxes().some((box) => box.checked);
  place.querySelector(".select-all")?.replaceChildren(isAny ? "Select none" : "Select all");
  place.querySelector(".selected-count")?.replaceChildren(`${chosen} of ${boxes().length} selected. `);
}

export function goToCommitForm() {
  document.getElementById("commit-message")?.focus();
}

// refresh(...notes): show all changes again.
export function commitForm(selectable, refresh) {
  const form = make("form", "commit");
  const label = make("label", "", "Commit selected files");
  const message = document.createElement("textarea");
  Object.assign(message, { id: "commit-message", rows: 2, required: true, placeholder: "What changed, and why", value: draft });
  message.addEventListener("input", () => (draft = message.value));
  label.htmlFor = message.id;
  const result = make("div");
  const send = make("button", "main", "Commit");
  const whole = selectable?.operation ? [note(`git is in the middle of a ${selectable.operation}, so all files are committed.`)] : [];
  form.append(row(label, ...(whole.length ? [] : [toggle()])), message, ...whole, result, row(send, aboutCommit()));
  if (selectable?.problem) result.append(alarm(visible(selectable.problem)));
  queueMicrotask(tellSelected); // once the lists are shown
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const chosen = boxes().filter((box) => box.checked);
    if (!chosen.length) return result.replaceChildren(alarm("Select at least one file."));
    send.disabled = true;
    try {
      const made = await commit(message.value, chosen, selectable);
      draft = "";
      refresh(done(`Committed as ${made.commit.slice(0, 8)}${made.branch ? ` on ${made.branch}` : ""}: ${made.subject}`));
    } catch (error) {
      const again = error.code === "file_changed" ? [row(button("Look again", () => refresh(), "small"))] : [];
      result.replaceChildren(alarm(reasonOf(error)), ...again);
      send.disabled = again.length > 0;
    }
  });
  return form;
}

function aboutCommit() {
  const about = make("small");
  about.append(make("span", "selected-count"), "Commits in your name. Git hooks do not run.");
  return about;
}

function toggle() {
  return button("Select none", () => {
    const isAny = selectableBoxes().some((box) => box.checked);
    for (const box of selectableBoxes()) box.checked = !isAny;
    tellSelected();
  }, "quiet small select-all");
}

// Only what was listed: the server refuses another version. During a merge, everything.
function commit(message, chosen, selectable) {
  if (selectable && !selectable.operation) {
    const files = chosen.map(({ value: path, dataset: { content, version } }) => ({ path, content, version }));
    return ask(`${panel.dataset.review}commit/`, { method: "POST", body: { message, files } });
  }
  const paths = chosen.length === boxes().length ? [] : [...new Set(chosen.map((box) => box.value))];
  return ask(`${panel.dataset.git}commit/`, { method: "POST", body: { message, paths } });
}
