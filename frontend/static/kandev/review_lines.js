// The lines of a changed file, in one column or side by side.
//
// Every line of content says where it is: data-path, data-side ("old" or "new") and data-line, its number there. A line
// that has not changed is one of the new side; side by side, it is there on both. Other modules, which add something to
// lines, find them by these attributes, put it below them with `placeBelow`, and are told by `whenLinesShown` as soon as
// the lines of a file are made, which happens again when the user changes how they are shown.

import { visible } from "./plain_text.js";
import { colour } from "./review_colours.js";
import { make } from "./workspace.js";

const listeners = [];

// The listener gets the element of all lines of a file, before it is part of the page, and the file.
export function whenLinesShown(listener) {
  listeners.push(listener);
}

// Side by side, what belongs to a line is below both sides.
export function placeBelow(line, element) {
  (line.closest(".pair") ?? line).after(element);
}

// `isWhole`: these are lines of the whole branch; the numbers of a part may be others, so nothing is added to them.
export function linesOf(hunks, file, isSplit, isWhole) {
  const made = make("div", isSplit ? "lines split" : "lines");
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", `Lines of ${visible(file.path)}`);
  const coloured = [];
  for (const hunk of hunks) {
    const lines = numbered(hunk);
    made.append(rangeOf(hunk), ...(isSplit ? paired(lines, file.path) : lines.map((line) => element(line, file.path))));
    coloured.push(lines);
  }
  colour(coloured, file.path);
  if (isWhole) for (const listener of listeners) listener(made, file);
  return made;
}

function rangeOf({ old_start, old_lines, new_start, new_lines, heading }) {
  return make("div", "line range", `@@ -${old_start},${old_lines} +${new_start},${new_lines} @@ ${heading}`.trimEnd());
}

// Lines with their numbers before and now; a note of git has none.
function numbered({ old_start, new_start, lines }) {
  let before = old_start, now = new_start;
  return lines.map((line) => {
    const sign = line[0], text = visible(shown(line.slice(1))), codes = [];
    if (sign === "+") return { kind: "plus", sign, text, codes, now: now++ };
    if (sign === "-") return { kind: "minus", sign, text, codes, before: before++ };
    if (sign === "\\") return { kind: "range", sign, text, codes };
    return { kind: "", sign: " ", text, codes, before: before++, now: now++ };
  });
}

function element(line, path, side = line.now === undefined ? "old" : "new") {
  const { kind, sign, text, before, now } = line;
  const made = make("div", `line ${kind}`.trimEnd());
  const code = make("span", "code", text);
  line.codes.push(code);
  made.append(make("span", "sign", sign), code);
  if (kind === "range") return made;
  made.dataset.numbers = `${String(before ?? "").padStart(5)} ${String(now ?? "").padStart(5)}`;
  Object.assign(made.dataset, { path, side, line: side === "old" ? before : now });
  return made;
}

// --- side by side ---

// Lines that have gone are beside those that came in their place.
function paired(lines, path) {
  const rows = [];
  let gone = [], added = [];
  const flush = () => {
    for (let at = 0; at < Math.max(gone.length, added.length); at += 1) rows.push(pair(gone[at], added[at], path));
    gone = [];
    added = [];
  };
  for (const line of lines) {
    if (line.kind === "minus") {
      if (added.length) flush();
      gone.push(line);
    } else if (line.kind === "plus") added.push(line);
    else if (line.kind === "range") rows.push(...noteRow(line, path, flush));
    else {
      flush();
      rows.push(pair(line, line, path));
    }
  }
  flush();
  return rows;
}

function noteRow(line, path, flush) {
  flush();
  return [element(line, path)];
}

function pair(gone, added, path) {
  const made = make("div", "pair");
  made.append(half(gone, path, "old"), half(added, path, "new"));
  return made;
}

function half(line, path, side) {
  if (!line) return make("div", "line none");
  const made = element(line, path, side);
  made.dataset.numbers = String(side === "old" ? line.before : line.now).padStart(5);
  return made;
}

// Carriage returns and escapes are part of the content, so they stay visible.
function shown(text) {
  return text.replace(/[\r\x1b]/g, (sign) => String.fromCodePoint(0x2400 + sign.charCodeAt(0)));
}
