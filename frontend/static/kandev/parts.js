// Replace parts of the page, each only when it has changed; open details, checked boxes and the focus are kept.

import { showLocalTimes } from "./times.js";

// Return the function that replaces them; its forget(name) replaces a part the next time even if it is unchanged.
export function partsOf(names) {
  const shown = new Map();
  const replace = (parts) => {
    for (const name of names) {
      if (shown.get(name) === parts[name]) continue;
      replaceInside(document.getElementById(`part-${name}`), parts[name]);
      shown.set(name, parts[name]);
    }
  };
  replace.forget = (name) => shown.delete(name);
  return replace;
}

function replaceInside(place, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  keepOpen(place, template.content);
  keepTicked(place, template.content);
  keepChosen(place, template.content);
  keepFilledIn(place, template.content);
  showLocalTimes(template.content); // before the layout: a longer time could need another line, and move the page
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(template.content);
  if (focused) [...place.querySelectorAll("a, button, summary, input, select, textarea")].find((one) => nameOf(one) === focused)?.focus({ preventScroll: true });
}

function keepTicked(before, after) {
  for (const box of before.querySelectorAll("input[type=checkbox]:checked")) {
    const same = after.querySelector(`input[name="${CSS.escape(box.name)}"][value="${CSS.escape(box.value)}"]`);
    if (same) same.checked = true;
  }
}

// What the user has selected and not sent yet.
function keepChosen(before, after) {
  for (const select of before.querySelectorAll("select[id]")) {
    const same = after.querySelector(`select#${CSS.escape(select.id)}`);
    const isTouched = [...select.options].some((option) => option.selected !== option.defaultSelected);
    if (same && isTouched && [...same.options].some((option) => option.value === select.value)) same.value = select.value;
  }
}

// The user's input to an agent's question, and the server's error messages for it.
function keepFilledIn(before, after) {
  for (const form of before.querySelectorAll("form[data-key]")) {
    const same = after.querySelector(`form[data-key="${CSS.escape(form.dataset.key)}"]`);
    for (const one of same ? form.querySelectorAll(".question-field [name]") : []) {
      const isBox = one.type === "checkbox" || one.type === "radio";
      const found = [...same.querySelectorAll(`[name="${CSS.escape(one.name)}"]`)].find((other) => !isBox || other.value === one.value);
      if (found) found[isBox ? "checked" : "value"] = isBox ? one.checked : one.value;
    }
    for (const problem of same ? form.querySelectorAll(".question-field .error[id]:not(:empty)") : []) {
      const about = `[aria-describedby~="${CSS.escape(problem.id)}"]`;
      same.querySelector(`#${CSS.escape(problem.id)}`)?.replaceChildren(problem.textContent);
      if (form.querySelector(`[aria-invalid]${about}`)) same.querySelector(about)?.setAttribute("aria-invalid", "true");
    }
  }
}

export function keepOpen(before, after) {
  for (const details of before.querySelectorAll("details[data-key][open]")) {
    const same = after.querySelector(`details[data-key="${CSS.escape(details.dataset.key)}"]`);
    if (same) same.open = true;
  }
}

function nameOf(element) {
  const about = element.closest("[data-key]")?.dataset.key; // two permissions may offer the same answers
  return [about, element.tagName, element.name, element.href ?? element.getAttribute("formaction"), element.value, element.textContent].join(" ");
}
