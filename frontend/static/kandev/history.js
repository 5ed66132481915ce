// One's own earlier prompts of this session, by the arrow keys in an empty composer.

const { text } = document.getElementById("composer").elements;

let earlier = []; // the newest first
let at = -1; // which of them is shown; -1: none
let caret = 0; // where it was left when that one was shown

// After the suggestions, which use the same keys: they have handled what they need.
export function begin(url) {
  text.addEventListener("keydown", async (event) => {
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!step || event.defaultPrevented || event.isComposing || event.shiftKey || event.ctrlKey || event.altKey || event.metaKey) return;
    if (at >= 0 && !isUnchanged()) at = -1;
    if (at < 0 && (text.value || step < 0)) return;
    event.preventDefault();
    if (at < 0) await load(url);
    if (at < 0 && text.value) return; // written while the server was asked
    show(Math.min(at + step, earlier.length - 1));
  });
}

function isUnchanged() {
  return text.value === earlier[at] && text.selectionStart === caret && text.selectionEnd === caret;
}

async function load(url) {
  try {
    const response = await fetch(url, { headers: { Accept: "application/json" }, redirect: "manual" });
    if (response.ok) earlier = (await response.json()).prompts;
  } catch {} // those that are known already remain
}

function show(number) {
  at = number;
  text.value = earlier[at] ?? "";
  caret = text.value.length;
  text.setSelectionRange(caret, caret);
  text.scrollTop = text.scrollHeight;
  text.dispatchEvent(new CustomEvent("input", { bubbles: true, detail: "history" })); // the draft is saved, and the field grows
}
