// Times are sent in UTC and shown in the reader's own zone, chosen in the settings or the browser's. One format
// everywhere, as the server writes it: 2026-03-01 14:05; today's times without the date. A clock stands below a
// heading with its date and shows the time alone; an exact time has seconds.

const chosen = document.documentElement.dataset.zone;
const zone = chosen ? { timeZone: chosen } : {};
const LIKE = "sv-SE"; // its dates are in the format of ISO 8601
const DAY = { year: "numeric", month: "2-digit", day: "2-digit" };
const MINUTE = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const SECOND = { ...MINUTE, second: "2-digit" };

function written(at, ...parts) {
  return at.toLocaleString(LIKE, Object.assign({}, ...parts, zone));
}

export function dateAndTime(at) {
  return written(at, DAY, MINUTE);
}

export function showLocalTimes(place) {
  for (const time of place.querySelectorAll("time:not([data-local])")) {
    const at = new Date(time.dateTime);
    const isToday = written(at, DAY) === written(new Date(), DAY);
    const precision = time.matches("[data-clock], [data-exact]") ? SECOND : MINUTE;
    const needsDate = !isToday && !time.hasAttribute("data-clock");
    time.textContent = needsDate ? written(at, DAY, precision) : written(at, precision);
    time.title = written(at, DAY, SECOND);
    time.dataset.local = "";
  }
}
