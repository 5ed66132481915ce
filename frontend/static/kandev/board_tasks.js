// Selecting tasks on the board: ranges, a key, and how many are selected.

const place = document.getElementById("part-board");
const bar = document.getElementById("bulk-tasks");
const MOST = 50; // what one request takes, as the server says, too
let last = ""; // the task that was selected or deselected last

const boxes = () => [...place.querySelectorAll("input[name=task]")];

function count() {
  if (!bar) return;
  const chosen = boxes().filter((box) => box.checked).length;
  const over = chosen > MOST ? ` – at most ${MOST} at once` : "";
  bar.querySelector(".bulk-count").textContent = chosen ? `${chosen} ${chosen === 1 ? "task" : "tasks"} selected${over}` : "";
  for (const button of bar.querySelectorAll("button[name=action]")) button.disabled = Boolean(over);
}

// Gives all between the last task and this one what this one has.
function choose(box, isRange) {
  const all = boxes();
  const from = all.findIndex((each) => each.value === last);
  if (isRange && from >= 0) {
    const [start, end] = [from, all.indexOf(box)].sort((a, b) => a - b);
    for (const each of all.slice(start, end + 1)) each.checked = box.checked;
  }
  last = box.value;
  count();
}

// The key `t`, on a card that has the focus.
export function selectTask(isRange) {
  const box = document.activeElement?.closest?.(".task")?.querySelector("input[name=task]");
  if (!box) return;
  box.checked = !box.checked;
  choose(box, isRange);
}

// The address of the filter that is shown now, which the page changes without a reload.
function keepQuery() {
  bar.setAttribute("action", bar.getAttribute("action").split("?")[0] + location.search);
}

place.addEventListener("click", (event) => {
  const box = event.target.closest("input[name=task]");
  if (box) choose(box, event.shiftKey);
});
place.addEventListener("change", count);
place.addEventListener("kandev:shown", count);
bar?.addEventListener("reset", () => setTimeout(count));
bar?.addEventListener("submit", keepQuery);
count();
