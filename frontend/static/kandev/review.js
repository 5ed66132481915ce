// The whole branch against its base in the Changes panel: a list of files, and all of them in one scroll.
// Hunks are loaded when their file comes into view, and kept as long as the file has not changed.

import { counted, visible } from "./plain_text.js";
import { isInstalled } from "./review_colours.js";
import { linesOf } from "./review_lines.js";
import { againstOf, ofPart, partChoice, partNotes } from "./review_parts.js";
import { treeOf } from "./review_tree.js";
import { isSplit, viewChoice, whenViewChanges } from "./review_view.js";
import { isShown } from "./tabs.js";
import { isViewed, setViewed } from "./viewed.js";
import { alarm, button, look, make, note, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const AT_ONCE = 10; // files in a request
const ADDRESS = 4000; // characters of their paths in its address, which servers limit
const STEPS = [3, 25, 100000]; // lines around a change
const WORDS = {
  added: "added", modified: "modified", deleted: "deleted", renamed: "renamed", type_changed: "of another type",
  mode_only: "mode only", line_ends_only: "line ends only", conflicted: "in conflict",
};
const MARKS = { added: "A", modified: "M", deleted: "D", renamed: "R", type_changed: "T", mode_only: "M", line_ends_only: "M", conflicted: "!" };
const PROBLEMS = {
  no_base: () => "The base of this branch is not known, so only what is not committed is compared.",
  not_found: ({ name }) => `The base ${name} was not found in this workspace, so only what is not committed is compared.`,
  unrelated: ({ name }) => `This branch has no commit in common with ${name}, so every file counts as new.`,
};
const CONFLICTS = {
  both_changed: "Compared with this branch's own side of the merge.",
  both_added: "Both sides of the merge have added it. Compared with this branch's own side.",
  both_deleted: "Both sides of the merge have deleted or renamed it.",
  added_by_us: "Only this branch has a file of this name.",
  added_by_them: "Only the other side of the merge has a file of this name, which is shown here.",
  deleted_by_us: "This branch has deleted it, and the other side has changed it. Shown as it is there.",
  deleted_by_them: "The other side of the merge has deleted it, and this branch has changed it.",
};
const loaded = new Map(); // version and lines around: the lines of a file
const bodies = new Map(); // body: its file, while it waits for its lines
const shown = new Map(); // body: function that shows its lines again
let waiting = [];
let shownPart = null; // of the branch; until another one has arrived, lines are those of this one
let isLoading = false;
let watcher = null;

export function hasFocusInReview() {
  return document.activeElement?.closest(".review") != null;
}

export function review(found) {
  watcher?.disconnect();
  waiting = [];
  bodies.clear();
  shown.clear();
  shownPart = found.part;
  watcher = new IntersectionObserver(seen, { rootMargin: "600px 0px" });
  const made = make("div", "review");
  made.append(make("h3", "", "The whole branch"), partChoice(found), ...about(found));
  if (found.files.length) {
    const { list, items } = treeOf(found.files, counts, linkTo);
    made.append(list, row(...viewChoice(), keysHint()), ...found.files.map((file, number) => article(file, number, found, items[number])));
  }
  return [made];
}

// --- what is said about the branch ---

function about(found) {
  const { base, count, additions, deletions, truncated } = found;
  const notes = partNotes(found.part).map(note);
  if (found.part?.problem) return notes;
  const against = againstWhat(found);
  const sums = make("p", "sums");
  sums.append(`${counted(count, "file")} ${against}`, ...(count ? [" ", ...counts({ additions, deletions })] : []));
  const problem = base?.problem ? [note(PROBLEMS[base.problem]?.(base) ?? "This branch cannot be compared with its base.")] : [];
  const apart = base && (base.problem === "" || found.ahead !== null) ? [note(apartFrom(base.name, found))] : [];
  const upstream = found.upstream ? [note(apartFrom(found.upstream.name, found.upstream))] : [];
  const cut = truncated ? [note("The list is too long to show completely, and what is not listed may not be counted.")] : [];
  return [sums, ...notes, ...problem, ...apart, ...upstream, ...cut];
}

function againstWhat({ base, part }) {
  if (!base) return againstOf(part);
  return base.problem ? "not committed" : `changed since ${base.name}`;
}

function apartFrom(name, { ahead, behind }) {
  if (ahead === null || behind === null) return `How far the branch and ${name} are apart is not known.`;
  if (!ahead && !behind) return `The branch is at the same commit as ${name}.`;
  const parts = [ahead ? `${counted(ahead, "commit")} ahead of ${name}` : "", behind ? `${counted(behind, "commit")} behind ${ahead ? "it" : name}` : ""];
  return `The branch is ${parts.filter(Boolean).join(" and ")}.`;
}

function counts({ additions, deletions }) {
  if (!additions && !deletions) return []; // not known, or renamed alone
  const sums = make("span", "counts");
  sums.append(make("span", "plus", `+${additions}`), " ", make("span", "minus", `−${deletions}`));
  return [sums];
}

// --- the list of files ---

function linkTo(file, number, name) {
  const link = make("a");
  link.href = `#change-${number}`;
  link.append(markOf(file), make("span", "path", name), ...counts(file));
  link.title = visible(file.path);
  link.addEventListener("click", (event) => {
    event.preventDefault();
    goTo(number);
  });
  return link;
}

function markOf({ change }) {
  const mark = make("span", `mark ${{ added: "plus", deleted: "minus" }[change] ?? ""}`, MARKS[change] ?? "M");
  mark.ariaHidden = "true";
  return mark;
}

function keysHint() {
  const hint = make("span", "none");
  hint.append(make("kbd", "", "j"), " next file, ", make("kbd", "", "k"), " previous file");
  if (!isInstalled) hint.title = "Lines have no colours: run `make setup` where npm is installed, then restart the server.";
  return hint;
}

// --- what the user has viewed ---

function viewedBox(file, body, item) {
  const label = make("label", "viewed");
  const box = make("input");
  box.type = "checkbox";
  box.checked = isViewed(file);
  box.setAttribute("aria-label", `Viewed ${visible(file.path)}`);
  box.addEventListener("change", async () => {
    update();
    try {
      await setViewed(file, box.checked);
      box.removeAttribute("aria-invalid");
    } catch (error) {
      box.ariaInvalid = "true"; // it stays marked until the page is left
      box.title = visible(reasonOf(error));
    }
  });
  label.append(box, "Viewed");
  const mark = make("small", "", "viewed");
  const update = () => {
    if (body) body.hidden = box.checked;
    mark.hidden = !box.checked;
  };
  item.append(mark);
  update();
  return label;
}

// --- one file ---

function article(file, number, found, item) {
  const made = make("article", "file");
  const title = make("h4", "", file.old_path ? `${file.path} ← ${file.old_path}` : file.path);
  title.id = `change-${number}`;
  title.tabIndex = -1;
  const words = [WORDS[file.change] ?? file.change, ...(file.uncommitted && found.base && !found.base.problem ? ["not committed"] : [])];
  const facts = make("p", "facts", words.join(", "));
  facts.append(...counts(file).flatMap((part) => [" ", part]));
  const body = hasLines(file) ? bodyOf(file) : null;
  const head = make("div", "head");
  head.append(title, facts, ...(file.version ? [viewedBox(file, body, item)] : []));
  made.append(head, ...explanations(file), ...(body ? [body] : []));
  return made;
}

function hasLines({ change, content, additions, deletions }) {
  if (change === "conflicted") return content === "text";
  if (content === "submodule") return true;
  return ["text", "symlink"].includes(content) && (additions ?? 1) + (deletions ?? 0) > 0;
}

function explanations({ change, conflict, content, commits, old_mode, new_mode, size, additions, deletions }) {
  const bytes = size === null ? "" : ` of ${counted(size, "byte")}`;
  const sentences = [];
  if (content === "binary") sentences.push(`A binary file${bytes}: it has no lines to show.`);
  if (content === "large") sentences.push(`A large file${bytes}: its lines are not compared.`);
  if (content === "submodule") sentences.push(submoduleSentence(commits));
  if (content === "symlink") sentences.push("A symbolic link: its line is where it leads.");
  if (content === "repository") sentences.push("A repository of its own: what is in it does not belong to this branch.");
  if (change === "line_ends_only") sentences.push("Only the ends of its lines differ, which are shown as ␍.");
  if (change === "conflicted") sentences.push(CONFLICTS[conflict] ?? CONFLICTS.both_changed);
  if (old_mode && new_mode && old_mode !== new_mode && change !== "type_changed") sentences.push(modeChange(old_mode, new_mode));
  if (content === "text" && change === "renamed" && !additions && !deletions) sentences.push("Its content is the same.");
  if (content === "text" && change === "added" && additions === 0) sentences.push("It is empty.");
  return sentences.map(note);
}

// An agentctl of an earlier release does not say to which commits it points.
function submoduleSentence(commits) {
  if (!commits) return "A submodule: it points to another commit.";
  if (commits.old === null) return `A submodule, which points to ${commitWords(commits.new)}.`;
  if (commits.new === null) return `It was a submodule, which pointed to ${commitWords(commits.old)}.`;
  return `A submodule: it pointed to ${commitWords(commits.old)}, and now points to ${commitWords(commits.new)}.`;
}

function commitWords(commit) {
  return commit ? `commit ${commit.slice(0, 8)}` : "the commit that its line names";
}

function modeChange(before, now) {
  if (now === "100755") return "It can be executed now.";
  if (before === "100755") return "It can no longer be executed.";
  return `Its mode was ${before} and is ${now}.`;
}

function bodyOf(file, step = 0) {
  const body = make("div", "body");
  const kept = file.version && loaded.get(`${file.version} ${STEPS[step]}`);
  if (kept) {
    body.append(...show(kept, file, body, step));
    return body;
  }
  body.append(note("Loading…"));
  bodies.set(body, { file, step });
  watcher.observe(body);
  return body;
}

function seen(entries) {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    watcher.unobserve(target);
    waiting.push(target);
  }
  load();
}

async function load() {
  if (isLoading) return;
  isLoading = true;
  while (waiting.length) await loadSome();
  isLoading = false;
}

// Those of one request have the same number of lines around their changes.
async function loadSome() {
  const { step } = bodies.get(waiting[0]) ?? {};
  const chosen = fitting(waiting.filter((body) => bodies.get(body)?.step === step).slice(0, AT_ONCE));
  waiting = waiting.filter((body) => !chosen.includes(body) && bodies.has(body));
  const requested = chosen.filter((body) => bodies.has(body));
  if (!requested.length) return;
  const query = new URLSearchParams({ lines_around: STEPS[step] });
  for (const body of requested) query.append("path", bodies.get(body).file.path);
  try {
    const { files } = await look(ofPart(`${panel.dataset.review}hunks/?${query}`, shownPart));
    const answers = new Map(files.map((answer) => [answer.path, answer])); // two files may have the same readable path
    for (const body of requested) arrived(body, answers.get(bodies.get(body)?.file.path));
  } catch (error) {
    for (const body of requested) failed(body, error);
  }
}

function fitting(chosen) {
  let length = 0;
  return chosen.filter((body, number) => {
    length += encodeURIComponent(bodies.get(body)?.file.path ?? "").length;
    return number === 0 || length <= ADDRESS;
  });
}

function arrived(body, hunks) {
  const wanted = bodies.get(body);
  if (!wanted) return; // the list was replaced meanwhile
  if (hunks.left_out) return void waiting.push(body);
  bodies.delete(body);
  if (hunks.version) loaded.set(`${hunks.version} ${STEPS[wanted.step]}`, hunks);
  if (loaded.size > 500) loaded.delete(loaded.keys().next().value);
  body.replaceChildren(...show(hunks, wanted.file, body, wanted.step));
}

function failed(body, error) {
  const wanted = bodies.get(body);
  if (!wanted) return;
  body.replaceChildren(alarm(reasonOf(error)), row(button("Try again", () => again(body, wanted.step), "small")));
}

function again(body, step) {
  bodies.set(body, { file: bodies.get(body)?.file ?? body.file, step });
  waiting.push(body);
  load();
}

whenViewChanges(() => {
  for (const again of shown.values()) again();
});

function show(hunks, file, body, step) {
  body.file = file;
  shown.set(body, () => body.replaceChildren(...show(hunks, file, body, step)));
  if (!hunks.change) return [note("This file no longer differs.")];
  if (!hunks.hunks.length) return file.change === "conflicted" ? [] : [note("No lines to show.")];
  const parts = [linesOf(hunks.hunks, file, isSplit(), (shownPart?.kind ?? "branch") === "branch")];
  if (hunks.truncated) parts.push(note("Only the beginning is shown."));
  if (hunks.cut) parts.push(note("Long lines are cut off."));
  const isWhole = ["added", "deleted"].includes(hunks.change) || hunks.truncated || step === STEPS.length - 1;
  if (!isWhole) {
    const label = step === STEPS.length - 2 ? "Show the whole file" : "Show more lines";
    const more = button(label, () => {
      more.disabled = true;
      again(body, step + 1);
    }, "quiet small");
    parts.push(row(more));
  }
  return parts;
}

// --- keys ---

function goTo(number) {
  const title = document.getElementById(`change-${number}`);
  title?.scrollIntoView({ block: "start" });
  title?.focus({ preventScroll: true });
}

function step(by) {
  const titles = [...panel.querySelectorAll(".review h4")];
  const here = titles.findIndex((title) => title.closest("article").contains(document.activeElement));
  const to = here < 0 ? (by > 0 ? 0 : -1) : here + by;
  if (titles[to]) goTo(to);
}

// Only where nothing else could mean a letter: in this panel, on its tab, or where nothing has the focus.
document.addEventListener("keydown", (event) => {
  const by = { j: 1, k: -1 }[event.key];
  if (!by || !isShown("changes") || event.ctrlKey || event.metaKey || event.altKey) return;
  const { target } = event;
  if (target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable], dialog")) return;
  if (target !== document.body && target.id !== "tab-changes" && !panel.contains(target)) return;
  if (!panel.querySelector(".review h4")) return;
  event.preventDefault();
  step(by);
});
