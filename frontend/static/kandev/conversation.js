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
  let before = null;
  for (let one = list.lastElementChild; one && Number(one.dataset.seq) > seq; one = one.previousElementSibling) before = one;
  list.insertBefore(made, before);
  return true;
}

export function showEarlier(messages) {
  list.prepend(...messages.map(madeOf).filter((made) => !document.getElementById(made.id)));
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
  for (const { name } of [...shown.attributes]) {
    if (!made.hasAttribute(name) && !(name === "open" && shown.dataset.key)) shown.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
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
  if (old.nodeType === Node.ELEMENT_NODE && old.nodeName === node.nodeName) return patch(old, node);
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.data.length)); // keeps a selection
    else old.data = node.data;
    return;
  }
  old.replaceWith(node);
}
