// Whether the user is looking at this page: it is visible, has the focus, and was used within the last minutes. Such a
// user gets no e-mail about the session, so a page that is left open overnight must not count.

const EVERY = 20000;
const TOUCHED = 300000;
const SIGNS = ["pointerdown", "pointermove", "keydown", "wheel", "touchstart", "focus"];

// send(here): reports it to the server; returns false while that is not possible. Returns what reports it at once.
export function tellPresence(send) {
  let touchedAt = Date.now();
  let reported = false;

  function report() {
    const here = !document.hidden && document.hasFocus() && Date.now() - touchedAt < TOUCHED;
    if ((here || reported) && send(here)) reported = here;
  }

  for (const sign of SIGNS) {
    window.addEventListener(sign, () => {
      const wasAway = !reported;
      touchedAt = Date.now();
      if (wasAway) report();
    }, { passive: true });
  }
  document.addEventListener("visibilitychange", report);
  window.addEventListener("blur", report);
  setInterval(report, EVERY);
  return report;
}
