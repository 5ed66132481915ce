// The requests of an agent on a page of their own: what has just appeared or moved there cannot be answered at once, so
// that no click meant for something else becomes an answer.

const READING = 700; // milliseconds, as on the session page

const place = document.getElementById("part-requests");
const shown = () => [...place.querySelectorAll(".asks")].map((form) => [form.dataset.key, form.querySelector(".asked, .as-written")?.textContent].join(" ")).join("\n");

let before = shown();

place.addEventListener("kandev:shown", () => {
  if (shown() === before) return;
  before = shown();
  for (const form of place.querySelectorAll(".asks")) {
    form.inert = true;
    setTimeout(() => (form.inert = false), READING);
  }
});
