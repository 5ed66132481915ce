// The timeline: days begin at midnight in the reader's time zone, not in the server's.

const chosen = document.documentElement.dataset.zone;
const zone = chosen ? { timeZone: chosen } : {};
const place = document.getElementById("part-timeline");

function headed(text) {
  const day = document.createElement("li");
  day.className = "day";
  day.append(document.createElement("h2"));
  day.firstChild.textContent = text;
  return day;
}

function dayByDay() {
  for (const day of place.querySelectorAll(".day")) day.remove();
  let shown = "";
  for (const entry of place.querySelectorAll(".entry")) {
    const at = new Date(entry.querySelector("time").dateTime);
    const day = at.toLocaleDateString([], { dateStyle: "long", ...zone });
    if (day !== shown) entry.before(headed(day));
    shown = day;
  }
}

place.addEventListener("kandev:shown", dayByDay);
dayByDay();
