// The frame of every page: theme switch, menus, dialogs, buttons to copy secrets, and times in the reader's time zone.

import { showLocalTimes } from "./times.js";

const root = document.documentElement;

showLocalTimes(document);

function chooseTheme(button) {
  const form = button.form;
  root.dataset.theme = button.value;
  for (const one of form.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
  const body = new FormData(form, button);
  body.set("quiet", "1");
  fetch(form.action, { method: "POST", body: new URLSearchParams(body), credentials: "same-origin" });
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form.theme") || !event.submitter) return;
  event.preventDefault();
  chooseTheme(event.submitter);
});

// On a phone the navigation is wider than the screen: scroll the current entry into view.
for (const here of document.querySelectorAll(".top nav [aria-current], .sections [aria-current]")) {
  const row = here.closest(".sections, .top nav");
  const distance = here.getBoundingClientRect().left - row.getBoundingClientRect().left;
  row.scrollLeft += distance - (row.clientWidth - here.clientWidth) / 2;
}

function closeMenus(but = null) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== but) menu.open = false;
}

document.addEventListener("click", (event) => {
  closeMenus(event.target.closest("details.menu"));
  const opener = event.target.closest("[data-opens]");
  if (opener) {
    event.preventDefault();
    document.getElementById(opener.dataset.opens)?.showModal();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const menu = document.activeElement?.closest("details.menu[open]");
  closeMenus();
  menu?.querySelector("summary").focus();
});

for (const button of document.querySelectorAll("[data-copies]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const secret = document.getElementById(button.dataset.copies);
    try {
      await navigator.clipboard.writeText(secret.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(secret);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
}

// --- single keys, which users can disable ---

const KEYS = "kandev-keys";

function isTyping(target) {
  return Boolean(target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]"));
}

// Before any script of the page acts on the key; `?` still lists the keys, and what enables them again.
document.addEventListener("keydown", (event) => {
  const isSingle = event.key.length === 1 && !" ?".includes(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey;
  if (isSingle && !isTyping(event.target) && localStorage.getItem(KEYS) === "off") event.stopImmediatePropagation();
}, true);

for (const box of document.querySelectorAll("input[data-keys-on]")) {
  box.checked = localStorage.getItem(KEYS) !== "off";
  box.addEventListener("change", () => localStorage.setItem(KEYS, box.checked ? "on" : "off"));
}

// --- the palette: loaded when it is opened for the first time ---

const finder = document.getElementById("find-opener");

// What is typed while it loads belongs to it, and not to the page, whose single keys answer requests.
async function openPalette() {
  let typed = "";
  const keep = (event) => {
    if (event.key.length !== 1 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    typed += event.key;
  };
  window.addEventListener("keydown", keep, true);
  try {
    const palette = await import("./palette.js");
    palette.open(finder, typed);
  } catch {
    location.assign(finder.href); // the page that works without this script
  } finally {
    window.removeEventListener("keydown", keep, true);
  }
}

finder?.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // opens the page in another tab
  event.preventDefault();
  openPalette();
});

document.addEventListener("keydown", (event) => {
  if (!finder || event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  if (event.target.closest?.("#terminal")) return; // cuts the line in a shell
  event.preventDefault();
  openPalette();
});

const asking = document.querySelectorAll("form[data-asks]");
for (const form of asking) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.asks)) event.preventDefault();
  });
}
