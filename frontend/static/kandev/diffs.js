// Coloured diffs: from git's output, and between two texts.

import { counted } from "./plain_text.js";
import { make } from "./workspace.js";

const SHOWN = 5000; // maximum number of lines

export function coloured(diff) {
  const lines = diff.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const start = lines.findIndex((line) => line.startsWith("@@"));
  return block((start < 0 ? lines : lines.slice(start)).map((line) => [kindOf(line), line]));
}

function kindOf(line) {
  if (line.startsWith("@@")) return "hunk";
  return { "+": "added", "-": "gone" }[line[0]] ?? "";
}

// The diff of two texts without their common beginning and end.
export function between(before, after) {
  const old = before.split("\n"), now = after.split("\n");
  let head = 0, tail = 0;
  while (head < Math.min(old.length, now.length) && old[head] === now[head]) head += 1;
  while (tail < Math.min(old.length, now.length) - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const near = old.slice(Math.max(0, head - 3), head).map((line) => ["", ` ${line}`]);
  const gone = old.slice(head, old.length - tail).map((line) => ["gone", `-${line}`]);
  const added = now.slice(head, now.length - tail).map((line) => ["added", `+${line}`]);
  return block([...near, ...gone, ...added]);
}

function block(lines) {
  const made = make("pre", "diff");
  made.tabIndex = 0;
  made.append(...lines.slice(0, SHOWN).map(([kind, text]) => make("span", kind, `${text}\n`)));
  if (lines.length > SHOWN) made.append(make("span", "hunk", `… ${counted(lines.length - SHOWN, "more line")}\n`));
  return made;
}
