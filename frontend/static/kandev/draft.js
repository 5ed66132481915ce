// The draft in the composer, stored in this browser until the server has it: it survives reloads and slow responses.

const page = document.getElementById("session");
const { text, message_id: messageId } = document.getElementById("composer").elements;
const KEY = `kandev-draft:${page.dataset.draft}`;

let sent = null; // the text that is being sent
let isInDoubt = false; // it was sent, and it is unknown whether it arrived

// If the browser cannot store anything (private windows, a full disk), the page works without drafts.
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

// randomUUID is missing if the page was loaded over plain HTTP.
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function changed() {
  // The server rejects a different text under an id that it may have seen.
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
    messageId.value = draft.id; // an unchanged text that is sent again is delivered once
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

// nextId: the server has the text; otherwise the draft stays. wasRefused: the server has rejected the text.
export function settled({ nextId = "", wasRefused = false } = {}) {
  const isSame = text.value === sent;
  if (nextId) {
    // Text that was written before the response arrived is the next draft.
    text.value = text.value.startsWith(sent) ? text.value.slice(sent.length).trimStart() : text.value;
    messageId.value = nextId;
  }
  isInDoubt = !nextId && !wasRefused;
  sent = null;
  if (isSame) keep();
  else changed();
}
