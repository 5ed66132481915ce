
// Reload a page if one of its scripts or style sheets could not be loaded, for example because the server
// restarted meanwhile. This script is inline, because it must work when no file could be loaded. It reloads a
// few times, with increasing delays and only once the server responds. If the user has typed or sent something,
// or the page shows a secret, it only offers to reload.
(() => {
  const KEY = "kandev.incomplete", TIMES = 4, FIRST_PAUSE = 500, LONGEST_PAUSE = 5000;
  const pause = (ms) => new Promise((done) => setTimeout(done, ms * (1 - Math.random() / 2)));
  let missing = false;

  function reloads(count) {
    try {
      if (count === undefined) return Number(sessionStorage.getItem(KEY));
      if (count) sessionStorage.setItem(KEY, count);
      else sessionStorage.removeItem(KEY);
    } catch {
      return TIMES;
    }
  }

  function typed(field) {
    if (field.type === "hidden") return false;
    if (field.type === "select-one") return field.selectedIndex !== Math.max(0, [...field.options].findLastIndex((one) => one.defaultSelected));
    if (["checkbox", "radio"].includes(field.type)) return field.checked !== field.defaultChecked; // its value may be a default, too
    if (field.options) return [...field.options].some((one) => one.selected !== one.defaultSelected);
    return field.value !== field.defaultValue;
  }

  function mayReload() {
    return "got" in document.documentElement.dataset && reloads() < TIMES && !document.querySelector("[data-copies]")
      && ![...document.querySelectorAll("input, textarea, select")].some(typed);
  }

  async function answers() {
    const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
    return answer?.ok;
  }

  function ask() {
    const line = document.createElement("p"), button = document.createElement("button");
    line.className = "connection";
    line.setAttribute("role", "alert");
    button.type = "button";
    button.textContent = "Reload";
    button.addEventListener("click", () => location.reload());
    line.append("Part of this page could not be loaded. ", button);
    document.body.prepend(line);
  }

  async function mend() {
    ask();
    for (let wait = FIRST_PAUSE * 2 ** reloads(); mayReload(); wait = Math.min(wait * 2, LONGEST_PAUSE)) {
      await pause(wait);
      if (!await answers() || !mayReload()) continue;
      reloads(reloads() + 1);
      return location.reload();
    }
    reloads(0);
  }

  function note(event) {
    if (event.target instanceof HTMLScriptElement || event.target instanceof HTMLLinkElement) missing = true;
  }

  addEventListener("error", note, true);
  addEventListener("load", () => {
    removeEventListener("error", note, true);
    if (missing) mend();
    else reloads(0);
  });
})();
