// Scrolling in a conversation: stay at the end or at the reader's position, announce new messages, and load older
// ones at the beginning.

import { keepNewest, showEarlier, showMessage } from "./conversation.js";
import { whenShown } from "./tabs.js";
import { showLocalTimes } from "./times.js";

const page = document.getElementById("session");
const list = document.getElementById("messages");
const talk = document.getElementById("talk");
const toEndBar = document.getElementById("to-end");
const NEAR = 120;
const MOST = Number(page.dataset.most); // messages that a page holds: browsers become slow with many thousands
const KEPT = Math.ceil(MOST * 0.8);

let follows = false; // the reader is at the end, or has just sent something and waits for the result
let lastTop = 0;
let isOwed = false;
let news = 0;
const held = new Set(); // ids of newer messages that are not on this page

export function follow() {
  follows = true;
}

export function leaveEnd() {
  follows = false;
}

// A reader at the end stays there; other readers see the number of new messages, which change() returns.
export function keepingPlace(change) {
  const settle = placeKeeper();
  settle(change());
}

// The same in two steps: call this before the change, and the returned function after it.
export function placeKeeper() {
  const wasAtEnd = follows || isAtEnd();
  return (added) => {
    if (!wasAtEnd) return count(added);
    if (!held.size) forgetOldest();
    toEnd();
  };
}

// Show what is new, and return how much. Where the reader is not at the end, the page does not forget what is being read:
// once it is full, it leaves out all newer messages and links to them. The place from which they are left out stays the
// end of this page, so that it never has a gap.
export function showNew(messages) {
  const mayForget = follows || isAtEnd();
  let added = 0;
  for (const message of messages) {
    const isNew = !document.getElementById(`m-${message.id}`);
    const isFull = held.size > 0 || (!mayForget && list.childElementCount >= MOST);
    if (isNew && isFull) added += hold(message);
    else if (showMessage(message)) added += 1;
  }
  return added;
}

function hold({ id, seq }) {
  const isEarlier = seq < Number(list.firstElementChild.dataset.seq);
  if (isEarlier || held.has(id)) return 0;
  if (!held.size) list.after(newerLink());
  held.add(id);
  return 1;
}

function newerLink() {
  const place = Object.assign(document.createElement("p"), { className: "earlier" });
  place.append(Object.assign(document.createElement("a"), { href: location.pathname, id: "newer", textContent: "Newer messages" }));
  return place;
}

function jumpToEnd() {
  if (held.size) location.assign(location.pathname); // opens at the newest messages
  else toEnd();
}

function isAtEnd() {
  return talk.hidden || talk.getBoundingClientRect().bottom <= window.innerHeight + NEAR;
}

export function toEnd() {
  follows = true;
  isOwed = talk.hidden; // hidden by a tab: scroll when it is shown
  if (isOwed) return;
  // Not scrollIntoView, which would also move the position from which the Tab key continues.
  window.scrollBy({ top: talk.getBoundingClientRect().bottom - window.innerHeight + 16, behavior: "instant" });
  count(-news);
}

function count(more) {
  news += more;
  const away = !isAtEnd();
  toEndBar.hidden = !away;
  toEndBar.firstElementChild.textContent = news ? `${news} new ↓` : "Jump to the end ↓";
}

let isAsked = false;
function scrolled() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    const isUp = window.scrollY < lastTop;
    lastTop = window.scrollY;
    if (isAtEnd()) follows = true;
    else if (isUp) follows = false; // only the reader scrolls up; the end moves down automatically
    count(isAtEnd() ? -news : 0);
  });
}

// --- older messages ---

async function loadEarlier(link) {
  const before = new URL(link.href).searchParams.get("before");
  link.ariaBusy = "true";
  try {
    const response = await fetch(`${page.dataset.earlier}?before=${before}`, { headers: { Accept: "application/json" }, redirect: "manual" });
    if (!response.ok) throw new Error(String(response.status));
    const { messages, older_than: older } = await response.json();
    const height = document.documentElement.scrollHeight, at = window.scrollY;
    showEarlier(messages);
    showLocalTimes(list);
    if (!older) link.parentElement.remove();
    else link.href = `?before=${older}`;
    if (list.childElementCount >= MOST) delete link.dataset.scripted; // followed as a link, it opens a page of its own
    window.scrollTo({ top: at + document.documentElement.scrollHeight - height, behavior: "instant" });
  } catch {
    link.href = `?before=${before}`; // followed as a link, it shows the error
    delete link.dataset.scripted;
  }
  link.ariaBusy = "false";
}

function offerEarlier(link) {
  link.dataset.scripted = "";
  const load = () => link.ariaBusy !== "true" && "scripted" in link.dataset && loadEarlier(link);
  link.addEventListener("click", (event) => {
    if (!("scripted" in link.dataset)) return;
    event.preventDefault();
    load();
  });
  let hasScrolled = false;
  window.addEventListener("wheel", () => (hasScrolled = true), { passive: true, once: true });
  window.addEventListener("touchmove", () => (hasScrolled = true), { passive: true, once: true });
  new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && hasScrolled && load(), { rootMargin: "300px" }).observe(link);
}

// A page that stays open all day shows the newest messages; those before them can be loaded again as earlier ones.
function forgetOldest() {
  let link = document.getElementById("earlier");
  if (list.childElementCount <= MOST || link?.ariaBusy === "true") return;
  keepNewest(KEPT);
  if (!link) {
    link = Object.assign(document.createElement("a"), { id: "earlier", textContent: "Earlier messages" });
    const place = document.createElement("p");
    place.className = "earlier";
    place.append(link);
    list.before(place);
    offerEarlier(link);
  }
  link.href = `?before=${list.firstElementChild.dataset.seq}`;
  link.dataset.scripted = "";
}

// --- copy buttons ---

const copier = document.createElement("button");
copier.type = "button";
copier.className = "copy code small";
copier.textContent = "Copy";
copier.hidden = true;
let copied = null;

function offerCopy({ target }) {
  const pre = target.closest?.("#messages pre, #permissions pre");
  if (target === copier || pre === copied) return;
  copied = pre;
  copier.hidden = !pre;
  copier.textContent = "Copy";
  if (!pre) return;
  const box = pre.getBoundingClientRect(), base = talk.getBoundingClientRect();
  copier.style.top = `${box.top - base.top + 6}px`;
  copier.style.right = `${base.right - box.right + 6}px`;
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text); // only in a secure context: https, or this machine
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function clicked({ target }) {
  if (target === copier) copy(copier, copied.innerText);
  if (!target.matches("[data-copies-message]")) return;
  copy(target, target.closest(".message").querySelector(".prose, .as-written").innerText);
}

export function begin() {
  const link = document.getElementById("earlier");
  if (link) offerEarlier(link);
  talk.append(copier);
  talk.addEventListener("pointerover", offerCopy);
  talk.addEventListener("focusin", offerCopy);
  talk.addEventListener("click", clicked);
  talk.addEventListener("click", ({ target }) => target.closest("summary") && (follows = false));
  // Messages get their real height when they are first drawn, after the page was scrolled to its end.
  new ResizeObserver(() => follows && !talk.hidden && !isAtEnd() && toEnd()).observe(talk);
  toEndBar.firstElementChild.addEventListener("click", jumpToEnd);
  whenShown("talk", () => isOwed && toEnd());
  window.addEventListener("scroll", scrolled, { passive: true });
  page.dataset.scripted = "";
}
