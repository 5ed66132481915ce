// Times are sent in UTC and shown in the reader's own zone; today's without their date.

export function showLocalTimes(place) {
  for (const time of place.querySelectorAll("time:not([data-local])")) {
    const at = new Date(time.dateTime);
    const today = at.toDateString() === new Date().toDateString();
    time.textContent = today ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    time.title = at.toLocaleString();
    time.dataset.local = "";
  }
}
