// What is written in the composer, kept in this browser until the server has it: it outlives reloads, slow answers
// and a page that loads itself again.

const page = document.getElementById("session");
const { text, message_id: messageId } = document.getElementById("composer").elements;
const KEY = `kandev-draft:${page.dataset.draft}`;

let sent = null; // the text that is on its way
let isInDoubt = false; // it was sent, and nobody knows whether it arrived

// Where a browser keeps nothing (private windows, a full disk) the page works without.
function keep(changes = {}) {
  try {
    if (text.value) localStorage.setItem(KEY, JSON.stringify({ text: text.value, id: isInDoubt || sent !== null ? messageId.value : "", ...changes }));
    else localStorage.removeItem(KEY);
  } catch {}
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null;
  }
}

// randomUUID is missing where the page came by plain HTTP.
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function changed() {
  // The server refuses another text under an id that it may have seen.
  if (isInDoubt && sent === null) {
    messageId.value = newId();
    isInDoubt = false;
  }
  keep();
}

function restore() {
  const draft = kept();
  if (!draft?.text) return;
  text.value = draft.text;
  if (draft.id) {
    messageId.value = draft.id; // sent again as it is, it is delivered once
    isInDoubt = true;
  }
  if (!draft.isFocused) return;
  text.focus({ preventScroll: true });
  text.setSelectionRange(draft.at, draft.at);
  keep();
}

export function begin() {
  restore();
  text.addEventListener("input", changed);
  window.addEventListener("pagehide", () => {
    if (document.activeElement === text && kept()) keep({ isFocused: true, at: text.selectionStart });
  });
}

export function isOnItsWay() {
  return sent !== null;
}

export function sending() {
  sent = text.value;
  keep();
}

// nextId: the server has the text. Otherwise it stays; wasRefused: the server has said that it does not have it.
export function settled({ nextId = "", wasRefused = false } = {}) {
  const isSame = text.value === sent;
  if (nextId) {
    // What was written while the answer was on its way is the next draft.
    text.value = text.value.startsWith(sent) ? text.value.slice(sent.length).trimStart() : text.value;
    messageId.value = nextId;
  }
  isInDoubt = !nextId && !wasRefused;
  sent = null;
  if (isSame) keep();
  else changed();
}
