// What the panels of the workspace share: asking its API, and small pieces of the page.

const token = document.querySelector("#actions [name=csrfmiddlewaretoken]");

export async function ask(url, { method = "GET", body, headers = {} } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const more = method === "GET" ? {} : { "Content-Type": "application/json", "X-CSRFToken": token.value };
  const response = await fetch(url, { method, headers: { Accept: "application/json", ...more, ...headers }, ...sent });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.message ?? "The workspace cannot be asked now."), { code: answer.code });
  return answer;
}

// From the workspace; where none is open, from what its repository has kept of it: `kept` says so.
export async function look(url) {
  try {
    return await ask(url);
  } catch (error) {
    if (!["agentctl_unreachable", "worktree_missing"].includes(error.code)) throw error;
    return ask(`${url}${url.includes("?") ? "&" : "?"}kept=true`).catch(() => {
      throw error;
    });
  }
}

export function origin({ kept }) {
  return kept ? [note(`The workspace is not open. This is what was kept of it on ${new Date(kept.at).toLocaleString()}.`)] : [];
}

export function reasonOf(error) {
  return error instanceof SyntaxError || error instanceof TypeError ? "The workspace cannot be asked now." : error.message;
}

export function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

export function button(text, act, className = "quiet") {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

export function note(text) {
  return make("p", "none", text);
}

export function alarm(text) {
  const made = make("p", "refusal", text);
  made.setAttribute("role", "alert");
  return made;
}

// Replaces what a panel shows; who worked in it with the keyboard stays in it.
export function fill(place, parts) {
  const hadFocus = place.contains(document.activeElement);
  place.replaceChildren(...parts);
  if (hadFocus) place.querySelector("button, textarea")?.focus();
}
