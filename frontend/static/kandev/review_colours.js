// Colours the lines of changed files: the syntax of their language, and the words in which two lines differ.
//
// highlight.js and jsdiff do that in a worker, which is ended if a text takes too long: agents write these texts, and a
// text can be made for that. Long lines, large hunks and everything beyond the limits stay plain.

import { make } from "./workspace.js";

const panel = document.getElementById("panel-changes");
const MOST_LINES = 1000; // of a hunk
const MOST_SIGNS = 100_000; // of a hunk
const LONG_LINE = 500; // characters
const SECONDS = 2; // for one hunk
const LANGUAGES = {
  bash: "sh bash zsh", c: "c h", cpp: "cc cpp cxx hpp hh", csharp: "cs", css: "css", diff: "diff patch", go: "go", graphql: "graphql gql",
  ini: "ini toml cfg conf", java: "java", javascript: "js mjs cjs jsx", json: "json", kotlin: "kt kts", less: "less", lua: "lua",
  makefile: "mk", markdown: "md markdown", objectivec: "m", perl: "pl pm", php: "php", python: "py pyi", r: "r", ruby: "rb", rust: "rs",
  scss: "scss", sql: "sql", swift: "swift", typescript: "ts mts cts tsx", vbnet: "vb", wasm: "wat", xml: "html htm xml svg vue", yaml: "yml yaml",
};
const NAMES = { makefile: "makefile", gnumakefile: "makefile", gemfile: "ruby", rakefile: "ruby", "pom.xml": "xml" };
const BY_END = new Map(Object.entries(LANGUAGES).flatMap(([language, ends]) => ends.split(" ").map((end) => [end, language])));
let worker = null;
let number = 0; // of the last request
let answered = null; // function for the answer that is awaited
let isWorking = false;
const jobs = [];

export const isInstalled = "highlight" in panel.dataset;

// `hunks`: for each of them the lines, with their texts and the elements that show them. Colours arrive later.
export function colour(hunks, path) {
  if (!isInstalled) return;
  const language = languageOf(path);
  for (const lines of hunks) {
    const signs = lines.reduce((sum, { text }) => sum + text.length, 0);
    if (lines.length <= MOST_LINES && signs <= MOST_SIGNS) jobs.push({ lines, language });
  }
  work();
}

function languageOf(path) {
  const name = path.split("/").at(-1).toLowerCase();
  return NAMES[name] ?? BY_END.get(name.includes(".") ? name.split(".").at(-1) : "") ?? "";
}

async function work() {
  if (isWorking) return;
  isWorking = true;
  await null; // until the lines are part of the page
  for (let job = jobs.shift(); job; job = jobs.shift()) {
    if (!isWanted(job)) continue;
    const answer = await ask(job);
    if (answer) job.lines.forEach(({ codes }, at) => codes.forEach((code) => show(code, answer[at])));
  }
  isWorking = false;
}

// Lines that were replaced meanwhile need no colours.
function isWanted({ lines }) {
  return lines.some(({ codes }) => codes.some((code) => code.isConnected));
}

function ask({ lines, language }) {
  const own = ++number;
  const sent = lines.map(({ kind, text }) => ({ kind, text: text.length > LONG_LINE ? "" : text }));
  return new Promise((resolve) => {
    const end = (answer) => {
      clearTimeout(timer);
      answered = null;
      resolve(answer);
    };
    const timer = setTimeout(() => {
      worker?.terminate();
      worker = null;
      end(null);
    }, SECONDS * 1000);
    answered = ({ data }) => data.number === own && end(data.lines);
    try {
      worker ??= start();
      worker.postMessage({ number: own, language, lines: sent, highlight: panel.dataset.highlight, words: panel.dataset.words });
    } catch {
      end(null); // the lines stay plain
    }
  });
}

function start() {
  const made = new Worker(panel.dataset.colours, { type: "module" });
  made.addEventListener("message", (event) => answered?.(event));
  return made;
}

// `parts`: pairs of classes and a text. Nothing is shown that was not there before.
function show(code, parts) {
  if (!parts?.length || parts.map(([, text]) => text).join("") !== code.textContent) return;
  code.replaceChildren(...parts.map(([classes, text]) => (classes ? make("span", classes, text) : text)));
}
