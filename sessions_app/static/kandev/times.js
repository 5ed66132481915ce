// Times are sent in UTC and shown in the reader's own zone, chosen in the settings or the browser's; today's without date.

const chosen = document.documentElement.dataset.zone;
const zone = chosen ? { timeZone: chosen } : {};

function dayOf(at) {
  return at.toLocaleDateString([], zone);
}

// Beside the heading of a day the time alone says enough, to the second.
function clockOf(time) {
  return { hour: "2-digit", minute: "2-digit", ...(time.hasAttribute("data-clock") ? { second: "2-digit", hourCycle: "h23" } : {}) };
}

export function showLocalTimes(place) {
  for (const time of place.querySelectorAll("time:not([data-local])")) {
    const at = new Date(time.dateTime);
    const today = dayOf(at) === dayOf(new Date());
    time.textContent = today || time.hasAttribute("data-clock") ? at.toLocaleTimeString([], { ...clockOf(time), ...zone }) : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short", ...zone });
    time.title = at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium", ...zone });
    time.dataset.local = "";
  }
}
