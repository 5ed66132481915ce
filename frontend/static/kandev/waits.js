// The form of a wait, and the key that its response shows once.

const form = document.getElementById("new-wait");
const place = document.getElementById("wait-key");

export function showKey(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  for (const one of template.content.querySelectorAll("[data-scripted]")) one.hidden = false;
  place.replaceChildren(template.content);
  if (form) {
    form.open = false;
    form.querySelector("form").reset();
  }
  place.querySelector("h2").focus();
  place.scrollIntoView({ block: "nearest" });
}

place?.addEventListener("click", async ({ target }) => {
  if (target.matches("[data-forgets]")) {
    place.replaceChildren();
    document.getElementById("waits-title").scrollIntoView({ block: "nearest" });
    document.querySelector("#part-waits button")?.focus();
    return;
  }
  const copied = target.dataset.copies && document.getElementById(target.dataset.copies);
  if (!copied) return;
  const text = copied.value ?? copied.textContent;
  try {
    await navigator.clipboard.writeText(text); // only in a secure context: https, or this machine
    target.textContent = "Copied";
  } catch {
    copied.focus();
    getSelection().selectAllChildren(copied);
    copied.select?.();
  }
});
