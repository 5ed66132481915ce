// Whether somebody looks at this page: seen, in front, and touched within the last minutes. Who looks is told of
// nothing by mail meanwhile; so a page that lies open overnight must not say that somebody is there.

const EVERY = 20000;
const TOUCHED = 300000;
const SIGNS = ["pointerdown", "pointermove", "keydown", "wheel", "touchstart", "focus"];

// say(here): tells the server; returns false while it cannot be told.
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
