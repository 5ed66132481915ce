// On a wide screen, requests are answered over the list that shows them: their page is read into a dialog. Its forms
// lead back to the list by themselves. On a phone, or if the page cannot be read, the link opens it as usual.

const READING = 700; // milliseconds, as on the session page: no second click of the one that opens it is an answer
const WIDE = matchMedia("(min-width: 48rem)");

const dialog = document.createElement("dialog");
dialog.className = "answer-dialog";
dialog.setAttribute("aria-labelledby", "answer-title");
const title = Object.assign(document.createElement("h2"), { id: "answer-title" });
// The styles of that page must not change this one.
const place = document.createElement("div");
const inside = place.attachShadow({ mode: "open" });
const closing = document.createElement("form");
closing.method = "dialog";
closing.className = "buttons";
closing.append(Object.assign(document.createElement("button"), { textContent: "Close" }));
dialog.append(title, place, closing);

async function readPage(link) {
  const url = new URL(link.href);
  url.searchParams.set("next", location.pathname + location.search);
  const answer = await fetch(url, { redirect: "manual" });
  if (!answer.ok) throw new Error(String(answer.status));
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function show(page) {
  title.textContent = page.querySelector("h1").textContent;
  const requests = document.adoptNode(page.getElementById("part-requests"));
  for (const back of requests.querySelectorAll("[data-back]")) back.remove();
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet" });
  style.href = page.querySelector("link[rel=stylesheet]").getAttribute("href");
  inside.replaceChildren(style, requests);
  dialog.showModal();
  for (const form of requests.querySelectorAll(".asks")) {
    form.inert = true;
    setTimeout(() => (form.inert = false), READING);
  }
}

async function open(link) {
  try {
    show(await readPage(link));
  } catch {
    location.assign(link.href);
  }
}

document.body.append(dialog);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-answers]");
  if (!link || !WIDE.matches || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  open(link);
});
