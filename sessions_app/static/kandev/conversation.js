// The messages of a conversation: rendered by the server, and what a socket appends until the next rendering.

import { keepOpen } from "./parts.js";

const list = document.getElementById("messages");
const BLOCKS = "p, pre, pre > code, ul, ol, li, blockquote, h1, h2, h3, h4, h5, h6";

// Show a message as the server rendered it, unless what is shown is as new.
export function showMessage({ id, seq, updated_seq, html }) {
  const shown = document.getElementById(`m-${id}`);
  const known = Number(shown?.dataset.updated ?? -1);
  if (known > updated_seq || (known === updated_seq && !("appended" in shown.dataset))) return;
  const template = document.createElement("template");
  template.innerHTML = html;
  const made = template.content.firstElementChild;
  document.getElementById("silence").hidden = true;
  if (shown) {
    keepOpen(shown, made);
    shown.replaceWith(made);
  } else {
    const first = list.firstElementChild;
    if (first && seq < Number(first.dataset.seq)) return; // belongs to the earlier pages
    const later = [...list.children].find((one) => Number(one.dataset.seq) > seq);
    list.insertBefore(made, later ?? null);
  }
}

// Put what was said behind a message that grows; false where only the server can show it.
export function append({ seq, payload }) {
  const shown = document.getElementById(`m-${payload.message_id}`);
  if (!shown || !("append" in payload)) return false;
  if (Number(shown.dataset.updated) >= seq) return true;
  const text = shown.querySelector(".prose, .as-written");
  if (!text) return false;
  end(text).append((shown.dataset.tail ?? "") + payload.append);
  delete shown.dataset.tail;
  shown.dataset.updated = seq;
  shown.dataset.appended = "";
  return !payload.complete; // one that has ended is shown as it will stay
}

function end(place) {
  while (place.lastElementChild?.matches(BLOCKS)) place = place.lastElementChild;
  if (place.lastElementChild?.matches(".appended")) return place.lastElementChild;
  const made = document.createElement("span");
  made.className = "as-written appended";
  place.append(made);
  return made;
}
