// The inbox: items are marked without leaving the page, also with single-key shortcuts.

import { showCount } from "./attention.js";

const place = document.getElementById("part-attention");
const marks = document.getElementById("marks");
const help = document.getElementById("inbox-keys");
const needs = () => [...place.querySelectorAll(".need")].filter((one) => !one.closest("details.seen:not([open])"));
const here = () => document.activeElement?.closest?.(".need");

function step(by) {
  const all = needs();
  const at = all.indexOf(here());
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  all[next]?.querySelector(".title").focus();
}

async function mark(button) {
  const need = button.closest(".need");
  const body = new FormData(marks);
  body.set("quiet", "1");
  button.disabled = true;
  const answer = await fetch(button.formAction, { method: "POST", body, redirect: "manual" }).catch(() => null);
  button.disabled = false;
  if (!answer?.ok) return location.reload();
  if (need) {
    const all = needs();
    const after = all[all.indexOf(need) + 1] ?? all[all.indexOf(need) - 1];
    document.getElementById("announce").textContent = `${button.dataset.act === "d" ? "Dismissed" : "Seen"}: ${need.querySelector(".title").textContent}`;
    after?.querySelector(".title").focus();
  }
  place.dispatchEvent(new CustomEvent("kandev:look"));
  showCount();
}

document.addEventListener("submit", (event) => {
  if (event.target !== marks || !event.submitter) return;
  event.preventDefault();
  mark(event.submitter);
});

const ACTS = {
  j: () => step(1),
  k: () => step(-1),
  e: () => here()?.querySelector("[data-act=e]")?.click(),
  d: () => here()?.querySelector("[data-act=d]")?.click(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, textarea, select") || help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!ACTS[event.key]) return;
  event.preventDefault();
  ACTS[event.key]();
});
