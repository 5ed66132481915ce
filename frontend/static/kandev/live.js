// Keep a page up to date: request changes when a socket announces them, otherwise at intervals while the page
// is visible, and continue through restarts of the server.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 5000;
const PATIENCE = 15000;

const connection = document.getElementById("connection");

function say(text) {
  connection.textContent = text;
  connection.hidden = !text;
}

// While the server does not respond, the pills show that their state is unknown, and the sentence about the session,
// which promises to queue prompts, is hidden; afterwards they show it again.
const STATUS = ".strip > div:not(.wide) .pill, .chips .pill, .rows:not(.places) > li > .pill";

function doubt(word) {
  document.documentElement.toggleAttribute("data-unknown", Boolean(word));
  for (const pill of document.querySelectorAll(STATUS)) {
    const known = pill.dataset.known === undefined ? [pill.textContent, pill.className] : JSON.parse(pill.dataset.known);
    [pill.textContent, pill.className] = word ? [word, "pill ask"] : known;
    if (word) pill.dataset.known = JSON.stringify(known);
    else delete pill.dataset.known;
  }
}

// Reduced by up to a half, so that the pages of a restarted server do not all reconnect at once.
export function jittered(wait) {
  return wait * (1 - Math.random() / 2);
}

// url(): what to request. apply(answer): returns true to request again at once. every(): milliseconds until
// the next request. back(): the server responds again. Answers are handled one at a time, in order.
export function keepLive({ url, apply, every, back = () => {} }) {
  let timer, due = Infinity, busy = false, ended = false, failures = 0;

  // Request within `wait` milliseconds; a request that is due sooner stays due.
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
    say("Reconnecting… What you see may be out of date.");
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
