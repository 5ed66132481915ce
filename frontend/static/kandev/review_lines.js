// The lines of a changed file: one element for each, with its number, its sign and its text.
//
// Every line of content says where it is: data-path, data-side ("old" or "new") and data-line, its number there. A line
// that has not changed counts as one of the new side. Other modules, which add something to lines, find them by these
// attributes, and are told by `whenLinesShown` as soon as the lines of a file are made.

import { visible } from "./plain_text.js";
import { make } from "./workspace.js";

const listeners = [];

// The listener gets the element of all lines of a file, before it is part of the page, and the file.
export function whenLinesShown(listener) {
  listeners.push(listener);
}

export function linesOf(hunks, file) {
  const made = make("div", "lines");
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", `Lines of ${visible(file.path)}`);
  for (const hunk of hunks) made.append(rangeOf(hunk), ...numbered(hunk).map((line) => element(line, file.path)));
  for (const listener of listeners) listener(made, file);
  return made;
}

function rangeOf({ old_start, old_lines, new_start, new_lines, heading }) {
  return make("div", "line range", `@@ -${old_start},${old_lines} +${new_start},${new_lines} @@ ${heading}`.trimEnd());
}

// Lines with their numbers before and now; a note of git has none.
function numbered({ old_start, new_start, lines }) {
  let before = old_start, now = new_start;
  return lines.map((line) => {
    const sign = line[0], text = line.slice(1);
    if (sign === "+") return { kind: "plus", sign, text, now: now++ };
    if (sign === "-") return { kind: "minus", sign, text, before: before++ };
    if (sign === "\\") return { kind: "range", sign, text };
    return { kind: "", sign: " ", text, before: before++, now: now++ };
  });
}

function element({ kind, sign, text, before, now }, path) {
  const made = make("div", `line ${kind}`.trimEnd());
  made.append(make("span", "sign", sign), make("span", "code", shown(text)));
  if (kind === "range") return made;
  made.dataset.numbers = `${String(before ?? "").padStart(5)} ${String(now ?? "").padStart(5)}`;
  Object.assign(made.dataset, now === undefined ? { path, side: "old", line: before } : { path, side: "new", line: now });
  return made;
}

// Carriage returns and escapes are part of the content, so they stay visible.
function shown(text) {
  return text.replace(/[\r\x1b]/g, (sign) => String.fromCodePoint(0x2400 + sign.charCodeAt(0)));
}
