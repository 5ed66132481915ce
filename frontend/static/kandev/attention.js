// The number of inbox items in the header of every page, kept up to date while the page is visible.

import { showBadge } from "./badge.js";
import { jittered } from "./live.js";
import { renewDevice } from "./devices.js";
import { areAllowed, showNotices } from "./notices.js";

const EVERY = 20000;

export async function showCount() {
  const badge = document.getElementById("attention-count");
  if (!badge) return;
  const answer = await fetch(badge.dataset.live, { headers: { Accept: "application/json" }, redirect: "manual", cache: "no-store" }).catch(() => null);
  if (!answer?.ok) return;
  const { count, notices, sign_in: signIn } = await answer.json();
  showNotices(notices);
  renewDevice(signIn);
  badge.textContent = count || "";
  badge.hidden = !count;
  showBadge(count);
}

async function follow() {
  if (!document.hidden || areAllowed()) await showCount();
  setTimeout(follow, jittered(EVERY));
}

showBadge(Number(document.getElementById("attention-count")?.textContent ?? 0));
setTimeout(follow, jittered(EVERY));
document.addEventListener("visibilitychange", () => document.hidden || showCount());
