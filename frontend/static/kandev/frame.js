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
  const row = here.closest(".sections ul, .top nav");
  row.scrollLeft = here.offsetLeft - row.offsetLeft - (row.clientWidth - here.clientWidth) / 2;
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

const asking = document.querySelectorAll("form[data-asks]");
for (const form of asking) {
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.asks)) event.preventDefault();
  });
}
