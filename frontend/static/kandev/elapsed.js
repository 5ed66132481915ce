// How long the running turn takes, counted from the time that the server gives, by the server's clock.

let ahead = 0; // milliseconds that the server's clock is ahead of the browser's

export function showElapsed() {
  for (const place of document.querySelectorAll(".elapsed[data-since]")) {
    const text = inWords(Math.max(0, Math.floor((Date.now() + ahead - Date.parse(place.dataset.since)) / 1000)));
    if (place.textContent !== text) place.textContent = text;
  }
}

function inWords(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours) return `${hours} h ${minutes % 60} min`;
  if (minutes) return `${minutes} min ${seconds % 60} s`;
  return `${seconds} s`;
}

export function begin(now) {
  ahead = Date.parse(now) - Date.now();
  showElapsed();
  setInterval(() => document.hidden || showElapsed(), 1000);
}
