// The composer of a session: what went wrong with its prompt stands beside "Send", and its text field grows with the text.

import { visible } from "./plain_text.js";

const composer = document.getElementById("composer");
const { text } = composer.elements;
const problem = document.getElementById("problem");
const [sentence, retry] = problem.children;
const MOST = 0.4; // of the window's height, as in composer.css

// Show what happened; retryWith: the button that the user pressed, if the same prompt may be sent again as it is.
export function tell(words, { isError = true, retryWith } = {}) {
  sentence.textContent = visible(words);
  problem.classList.toggle("bad", isError);
  problem.hidden = !words;
  retry.hidden = retryWith === undefined;
  retry.onclick = () => composer.requestSubmit(retryWith?.isConnected ? retryWith : null);
}

// Once its text or files differ, it is another prompt: there is nothing to retry.
export function changed() {
  retry.hidden = true;
}

// For browsers without `field-sizing`.
function grow() {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * MOST)}px`;
}

export function begin() {
  if (matchMedia("(pointer: fine)").matches) text.placeholder = "Ask for a change (@ file, / command, ↑ earlier prompt)";
  text.addEventListener("input", changed);
  if (CSS.supports("field-sizing", "content")) return;
  text.addEventListener("input", grow);
  addEventListener("resize", grow);
  grow();
}
