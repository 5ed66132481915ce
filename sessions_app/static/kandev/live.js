// Keeps a page true: asks for what has changed while the page is seen, and goes on asking
// through restarts of the server. What an answer says may be applied twice.

const SLOWEST = 5000;
const PATIENCE = 15000;

const connection = document.getElementById("connection");

function say(text) {
  connection.textContent = text;
  connection.hidden = !text;
}

// url(): what to ask for; apply(answer): returns true to ask again at once.
export function keepLive({ url, apply, every }) {
  let timer, busy = false, ended = false, pause = every;

  function next(wait) {
    clearTimeout(timer);
    if (!ended && !document.hidden) timer = setTimeout(look, wait);
  }

  function end(text) {
    ended = true;
    say(text);
  }

  async function look() {
    if (busy || ended) return;
    busy = true;
    let wait = every;
    try {
      const answer = await ask(url());
      if (answer.over) return end(answer.over);
      say("");
      pause = every;
      if (apply(answer.json)) wait = 0;
    } catch (error) {
      say("Reconnecting…");
      wait = pause = Math.min(pause * 1.5, SLOWEST);
    } finally {
      busy = false;
    }
    next(wait);
  }

  document.addEventListener("visibilitychange", () => next(0));
  window.addEventListener("online", () => next(0));
  next(every);
  return { look: () => next(0) };
}

async function ask(url) {
  const response = await fetch(url, {
    headers: { Accept: "application/json" },
    redirect: "manual",
    cache: "no-store",
    signal: AbortSignal.timeout(PATIENCE),
  });
  if (response.type === "opaqueredirect") return { over: "You are logged out. Reload the page to log in." };
  if (response.status === 404) return { over: "This is gone, or no longer yours to see." };
  if (!response.ok) throw new Error(String(response.status));
  return { json: await response.json() };
}

// Replaces parts of the page, each only when it has changed; open details and the focus stay where they were.
export function partsOf(names) {
  const shown = new Map();
  return (parts) => {
    for (const name of names) {
      if (shown.get(name) === parts[name]) continue;
      replaceInside(document.getElementById(`part-${name}`), parts[name]);
      shown.set(name, parts[name]);
    }
  };
}

function replaceInside(place, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  keepOpen(place, template.content);
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(template.content);
  if (focused) [...place.querySelectorAll("a, button, summary")].find((one) => nameOf(one) === focused)?.focus();
}

export function keepOpen(before, after) {
  for (const details of before.querySelectorAll("details[data-key][open]")) {
    const same = after.querySelector(`details[data-key="${CSS.escape(details.dataset.key)}"]`);
    if (same) same.open = true;
  }
}

function nameOf(element) {
  return [element.tagName, element.href ?? element.getAttribute("formaction"), element.value, element.textContent].join(" ");
}
