// Unstage or discard the uncommitted changes of one file, after showing what would be lost.

import { coloured } from "./diffs.js";
import { visible } from "./plain_text.js";
import { alarm, ask, button, done, look, make, note, reasonOf, row } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const ACTIONS = { staged: "unstage", unstaged: "discard", untracked: "discard", conflicted: "discard" };
const WORDS = {
  unstage: { offer: "Unstage", confirm: "Unstage this file", done: "Unstaged" },
  discard: { offer: "Discard…", confirm: "Discard these changes", done: "Discarded the changes of" },
};

// A button for a file of one of the lists. `show` replaces the panel's content, `back` shows all changes again.
export function undoButton(path, key, show, back) {
  const action = ACTIONS[key];
  const offer = button(WORDS[action].offer, () => showLoss(path, action, show, back), "quiet small undo");
  offer.setAttribute("aria-label", visible(`${WORDS[action].offer.replace("…", "")} ${path}`));
  return offer;
}

async function showLoss(path, action, show, back) {
  const leave = button("← All changes", () => back(), "quiet small");
  const head = row(leave, make("span", "place", path));
  try {
    const loss = await look(`${panel.dataset.review}loss/?${new URLSearchParams({ path, action })}`);
    const cut = loss.truncated ? [note("Only the beginning is shown. All of it is lost.")] : [];
    const result = make("div");
    const confirm = button(WORDS[action].confirm, () => carryOut(loss, { confirm, result, show, back }), action === "discard" ? "danger" : "main");
    show([head, note(loss.sentence), ...(loss.lines ? [coloured(loss.lines)] : []), ...cut, result, row(confirm)]);
  } catch (error) {
    show([head, alarm(reasonOf(error))]);
  }
}

// Only what was shown: the server refuses another version.
async function carryOut({ path, action, version }, { confirm, result, show, back }) {
  confirm.disabled = true;
  try {
    await ask(`${panel.dataset.review}undo/`, { method: "POST", body: { path, action, version } });
    back(done(`${WORDS[action].done} ${path}.`));
  } catch (error) {
    const isOther = error.code === "file_changed";
    const again = isOther ? [row(button("Look again", () => showLoss(path, action, show, back), "small"))] : [];
    result.replaceChildren(alarm(isOther ? "The file has changed since it was shown, so nothing was done." : reasonOf(error)), ...again);
    confirm.disabled = isOther;
  }
}
