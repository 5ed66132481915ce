// The worker of review_colours.js: it gets lines of a hunk, and answers with the parts of each, as pairs of classes and a text.

const LIKE = 0.4; // the share of two lines that has to be the same for their words to be compared
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };
const PIECE = /<span class="([^"]*)">|(<\/span>)|([^<]+)/g; // all that highlight.js writes
let tools = null;

self.addEventListener("message", async ({ data }) => {
  tools ??= Promise.all([import(data.highlight), import(data.words)]).then(([{ default: highlighter }]) => highlighter);
  self.postMessage({ number: data.number, lines: coloured(data, await tools) });
});

function coloured({ lines, language }, highlighter) {
  const words = differentWords(lines);
  const known = highlighter.getLanguage(language) ? language : "";
  // Each side is read as one text, in which comments and strings may have several lines.
  const sides = ["minus", "plus"].map((kind) => sideOf(lines, kind, known, highlighter));
  return lines.map((line, at) => withWords(sides[line.kind === "minus" ? 0 : 1].get(at) ?? [["", line.text]], words.get(at)));
}

function sideOf(lines, kind, language, highlighter) {
  const numbers = lines.flatMap((line, at) => ([kind, ""].includes(line.kind) ? [at] : []));
  if (!language) return new Map();
  const text = numbers.map((at) => lines[at].text).join("\n");
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  const found = partsOf(value);
  return new Map(numbers.map((at, place) => [at, found[place] ?? []]));
}

// The parts of each line of what highlight.js has written.
function partsOf(html) {
  const lines = [[]], around = [];
  for (const [, opened, closed, text] of html.matchAll(PIECE)) {
    if (opened !== undefined) around.push(opened);
    else if (closed) around.pop();
    else {
      plain(text).split("\n").forEach((piece, at) => {
        if (at) lines.push([]);
        if (piece) lines.at(-1).push([around.at(-1) ?? "", piece]);
      });
    }
  }
  return lines;
}

function plain(text) {
  return text.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity]);
}

// --- words ---

// The ranges of characters that differ, of lines that have gone and come in the same place.
function differentWords(lines) {
  const found = new Map();
  for (let at = 0; at < lines.length; at += 1) {
    const gone = [], added = [];
    while (lines[at]?.kind === "minus") gone.push(at++);
    while (lines[at]?.kind === "plus") added.push(at++);
    if (gone.length && gone.length === added.length) gone.forEach((old, place) => compare(lines, old, added[place], found));
    if (gone.length || added.length) at -= 1;
  }
  return found;
}

function compare(lines, old, now, found) {
  const before = lines[old].text, after = lines[now].text;
  const parts = self.Diff.diffWordsWithSpace(before, after, { timeout: 100, maxEditLength: 200 });
  if (!parts) return;
  const same = parts.reduce((sum, part) => sum + (part.added || part.removed ? 0 : part.value.trim().length), 0);
  if (same < LIKE * Math.max(before.trim().length, after.trim().length)) return;
  found.set(old, ranges(parts.filter((part) => !part.added), "removed"));
  found.set(now, ranges(parts.filter((part) => !part.removed), "added"));
}

function ranges(parts, changed) {
  let at = 0;
  return parts.flatMap((part) => {
    const range = [at, (at += part.value.length)];
    return part[changed] ? [range] : [];
  });
}

function withWords(parts, marked) {
  if (!marked?.length) return parts;
  let at = 0;
  return parts.flatMap(([classes, text]) => {
    const begin = at;
    at += text.length;
    const cuts = [begin, ...marked.flat().filter((place) => place > begin && place < at), at];
    return cuts.slice(1).map((end, place) => {
      const from = cuts[place];
      const isMarked = marked.some(([first, last]) => from >= first && end <= last);
      return [isMarked ? `${classes} word`.trim() : classes, text.slice(from - begin, end - begin)];
    });
  });
}
