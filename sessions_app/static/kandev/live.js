// Keeps a page true: asks for what has changed when somebody says that there is news, else by the
// clock while the page is seen, and goes on asking through restarts of the server.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 5000;
const PATIENCE = 15000;

const connection = document.getElementById("connection");

function say(text) {
  connection.textContent = text;
  connection.hidden = !text;
}

// What the pills say is not known while nobody answers: they say so, and afterwards again what they said.
const STATUS = ".strip > div:not(.wide) .pill, .chips .pill, .rows:not(.places) > li > .pill";

function doubt(word) {
  for (const pill of document.querySelectorAll(STATUS)) {
    const known = pill.dataset.known === undefined ? [pill.textContent, pill.className] : JSON.parse(pill.dataset.known);
    [pill.textContent, pill.className] = word ? [word, "pill ask"] : known;
    if (word) pill.dataset.known = JSON.stringify(known);
    else delete pill.dataset.known;
  }
}

// Up to half of it less, so that the pages of a restarted server do not all come at once.
export function jittered(wait) {
  return wait * (1 - Math.random() / 2);
}

// url(): what to ask for. apply(answer): returns true to ask again at once. every(): milliseconds until
// the clock asks. back(): the server answers again. Answers come one at a time, in the order of asking.
export function keepLive({ url, apply, every, back = () => {} }) {
  let timer, due = Infinity, busy = false, ended = false, failures = 0;

  // Ask within `wait` milliseconds; what is due sooner stays due.
  function soon(wait = 0) {
    const at = performance.now() + wait;
    if (ended || at >= due) return;
    due = at;
    clearTimeout(timer);
    if (!busy) timer = setTimeout(look, wait);
  }

  function rest(wait) {
    const wished = due;
    due = Infinity;
    if (wished < Infinity) soon(Math.max(0, Math.min(wait, wished - performance.now())));
    else if (!document.hidden) soon(wait);
  }

  function end(text) {
    ended = true;
    clearTimeout(timer);
    say(text);
    doubt("Unknown");
  }

  async function look() {
    due = Infinity;
    busy = true;
    const answer = await ask(url()).catch(() => null);
    busy = false;
    if (ended) return;
    if (answer?.over) return end(answer.over);
    if (!answer) return later();
    say("");
    if (failures) {
      doubt("");
      back();
    }
    failures = 0;
    let more = false;
    try {
      more = apply(answer.json);
    } catch (error) {
      reportError(error);
    }
    rest(more ? 0 : every());
  }

  function later() {
    failures += 1;
    say("Reconnecting…");
    doubt("Reconnecting");
    due = Infinity;
    soon(jittered(Math.min(FIRST_PAUSE * 1.5 ** failures, LONGEST_PAUSE)));
  }

  document.addEventListener("visibilitychange", () => document.hidden || soon());
  window.addEventListener("online", () => soon());
  soon(every());
  return { soon, end };
}

async function ask(url) {
  const response = await fetch(url, {
    headers: { Accept: "application/json" },
    redirect: "manual",
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  if (response.type === "opaqueredirect") return { over: LOGGED_OUT };
  if (response.status === 404) return { over: GONE };
  if (!response.ok) throw new Error(String(response.status));
  return { json: await response.json() };
}

export const LOGGED_OUT = "You are logged out. Reload the page to log in.";
export const GONE = "This no longer exists, or you no longer have access to it.";
