// Whether the user is looking at this page: it is visible, has the focus, and was used within the last minutes. Such a
// user gets no e-mail about the session, so a page that is left open overnight must not count.

const EVERY = 20000;
const TOUCHED = 300000;
const SIGNS = ["pointerdown", "pointermove", "keydown", "wheel", "touchstart", "focus"];

// say(here): reports it to the server; returns false while that is not possible.
export function tellPresence(say) {
  let touched = Date.now();
  let told = false;

  function look() {
    const here = !document.hidden && document.hasFocus() && Date.now() - touched < TOUCHED;
    if ((here || told) && say(here)) told = here;
  }

  for (const sign of SIGNS) {
    window.addEventListener(sign, () => {
      const wasAway = !told;
      touched = Date.now();
      if (wasAway) look();
    }, { passive: true });
  }
  document.addEventListener("visibilitychange", look);
  window.addEventListener("blur", look);
  setInterval(look, EVERY);
  return look;
}
