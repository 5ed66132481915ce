// Puts a link to what a turn has changed below the last message of each turn. The server lists the turns after the
// conversation, where those without JavaScript find the newest.

const messages = document.getElementById("messages");
const place = document.getElementById("part-turns");

function update() {
  const ends = [...place.querySelectorAll(".turn-end")];
  const items = [...messages.querySelectorAll(":scope > li[data-seq]")];
  for (const old of messages.querySelectorAll(".turn-end")) {
    if (!ends.some((end) => end.dataset.last === old.dataset.last)) old.remove();
  }
  for (const end of ends) {
    const [first, last] = [Number(end.dataset.first), Number(end.dataset.last)];
    const item = items.findLast(({ dataset: { seq } }) => Number(seq) > first && Number(seq) <= last);
    if (!item) continue;
    end.hidden = true;
    const shown = messages.querySelector(`.turn-end[data-last="${last}"]`) ?? end.cloneNode(true);
    // Only the newest turn has links to merge and push.
    if (shown.innerHTML !== end.innerHTML) shown.replaceChildren(...end.cloneNode(true).childNodes);
    shown.hidden = false;
    if (shown.parentElement !== item) item.append(shown);
  }
}

if (messages && place) {
  update();
  const watcher = new MutationObserver(update);
  watcher.observe(messages, { childList: true });
  watcher.observe(place, { childList: true });
}
