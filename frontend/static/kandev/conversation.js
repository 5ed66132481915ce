// The messages of a conversation: rendered by the server, with text that a socket appends until the next rendering.

import { visible } from "./plain_text.js";

const list = document.getElementById("messages");
const BLOCKS = "p, pre, pre > code, ul, ol, li, blockquote, h1, h2, h3, h4, h5, h6";

// Show a message as the server rendered it, unless the page already has that version; true for a new message.
export function showMessage({ id, seq, updated_seq, html }) {
  const shown = document.getElementById(`m-${id}`);
  const known = Number(shown?.dataset.updated ?? -1);
  if (known > updated_seq || (known === updated_seq && !("appended" in shown.dataset))) return false;
  const made = madeOf(html);
  document.getElementById("silence")?.remove();
  if (shown) {
    patch(shown, made);
    return false;
  }
  const first = list.firstElementChild;
  if (first && seq < Number(first.dataset.seq)) return false; // belongs to the earlier pages
  insert(stepsOf(callOf(made)) ?? list, made);
  return true;
}

function insert(place, made) {
  let before = null;
  for (let one = place.lastElementChild; one && Number(one.dataset.seq) > Number(made.dataset.seq); one = one.previousElementSibling) before = one;
  place.insertBefore(made, before);
}

// Remove the oldest messages until `count` are left. Steps of a sub-agent that are newer than the new beginning stay, beside
// the other messages: only what was before the beginning can be loaded again.
export function keepNewest(count) {
  while (list.childElementCount > count) removeOldest(list.childElementCount - count);
}

function removeOldest(count) {
  const removed = [...list.children].slice(0, count);
  for (const one of removed) one.remove();
  const first = Number(list.firstElementChild.dataset.seq);
  for (const step of removed.flatMap((one) => [...one.querySelectorAll(".nested > .message")])) {
    const isInside = list.contains(step); // of a step that has just been put there
    if (!isInside && Number(step.dataset.seq) > first) insert(list, step);
  }
}

export function showEarlier(messages) {
  const later = list.firstElementChild;
  list.prepend(...messages.map(madeOf).filter((made) => !document.getElementById(made.id)));
  // What was the beginning of the page may belong to a call that has only now arrived.
  for (let one = later; one && !one.matches(".user"); ) {
    const next = one.nextElementSibling, steps = stepsOf(callOf(one));
    if (steps) insert(steps, one);
    one = next;
  }
}

// --- steps of sub-agents: as in sessions_app/stream/rules/nesting.py ---

const MAX_DEPTH = 4;

// The tool call whose sub-agent makes this one: the newest earlier one with its id since the last prompt.
function callOf(made) {
  const wanted = made.dataset.parentCall;
  if (!wanted) return null;
  const all = [...list.querySelectorAll(".message")];
  for (const one of all.reverse()) {
    if (one === made || Number(one.dataset.seq) > Number(made.dataset.seq)) continue;
    if (one.matches(".user")) return null;
    if (one.dataset.call === wanted) return one;
  }
  return null;
}

function stepsOf(call) {
  if (!call) return null;
  const outer = call.parentElement.closest(".nested");
  let depth = 1;
  for (let place = outer; place; place = place.parentElement.closest(".nested")) depth += 1;
  return depth > MAX_DEPTH ? outer : call.querySelector(":scope > .steps > .nested");
}

function madeOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Append text to a message that is still growing, once even if it is received repeatedly; false if only the server can
// render the change.
export function append({ seq, payload }) {
  const shown = document.getElementById(`m-${payload.message_id}`);
  if (!shown || !("append" in payload)) return false;
  if (Number(shown.dataset.updated) >= seq) return true;
  shown.dataset.updated = seq;
  return grow(shown, payload.append) && !payload.complete; // a complete message is rendered by the server
}

function grow(shown, text) {
  const place = shown.querySelector(".prose, .as-written");
  shown.dataset.appended = "";
  if (!place) return false;
  const spot = end(place);
  (spot.lastChild ?? spot.appendChild(new Text())).appendData(visible(text));
  return true;
}

function end(place) {
  while (place.lastElementChild?.matches(BLOCKS)) place = place.lastElementChild;
  if (place.lastElementChild?.matches(".appended")) return place.lastElementChild;
  const made = document.createElement("span");
  made.className = "as-written appended";
  place.append(made);
  return made;
}

// Update one element to equal another, touching only the differences, so that scroll position and selection stay.

function patch(shown, made) {
  patchAttributes(shown, made);
  patchChildren(shown, made);
}

function patchAttributes(shown, made) {
  // A reader opens and closes details; the server opens them once, when there is something to see in them.
  const unfolds = "unfolds" in made.dataset && !("unfolds" in shown.dataset);
  const isReaders = (name) => name === "open" && shown.dataset.key && !unfolds;
  for (const { name } of [...shown.attributes]) {
    if (!made.hasAttribute(name) && !isReaders(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (shown.getAttribute(name) !== value && !isReaders(name)) shown.setAttribute(name, value);
  }
}

function patchChildren(shown, made) {
  const next = [...made.childNodes];
  for (const [index, node] of next.entries()) {
    const old = shown.childNodes[index];
    if (!old) shown.append(node);
    else if (!old.isEqualNode(node)) renew(old, node);
  }
  while (shown.childNodes.length > next.length) shown.lastChild.remove();
}

function renew(old, node) {
  if (old.nodeType === Node.ELEMENT_NODE && old.matches(".steps") && node.nodeName === old.nodeName) return; // has messages of its own
  if (old.nodeType === Node.ELEMENT_NODE && old.nodeName === node.nodeName) return patch(old, node);
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.data.length)); // keeps a selection
    else old.data = node.data;
    return;
  }
  old.replaceWith(node);
}
