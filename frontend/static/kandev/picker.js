// The files of a prompt: chosen, pasted into its text or dropped on an area, and shown with a thumbnail. The file input
// contains them, so the form sends the same with and without this script.

import { counted, visible } from "./plain_text.js";

// tell(text) shows why files were rejected; changed() is called when their number changes.
export function createPicker({ input, chosen, text, area, marked, tell, changed = () => {} }) {
  const most = Number(input.dataset.files), mostBytes = Number(input.dataset.bytes), mostEach = Number(input.dataset.fileBytes);
  let kept = []; // the files in the input

  function add(more) {
    const next = [...kept, ...[...more].filter((file) => !kept.some((one) => isSame(one, file)))];
    const tooMany = next.length > most, tooMuch = next.reduce((sum, { size }) => sum + size, 0) > mostBytes;
    const large = next.find(({ size }) => size > mostEach);
    if (large) tell(`“${visible(large.name)}” is too large: a file can have at most ${mostEach / 2 ** 20} MiB.`);
    else if (tooMany) tell(`A prompt can carry at most ${most} files.`);
    else if (tooMuch) tell(`The files of a prompt can have at most ${mostBytes / 2 ** 20} MiB in total.`);
    else tell("");
    keep(large || tooMany || tooMuch ? kept : next);
    const announce = document.getElementById("announce");
    if (announce) announce.textContent = kept.length ? `${counted(kept.length, "file")} attached` : "";
  }

  function keep(next) {
    const hasChanged = next.length !== kept.length;
    kept = next;
    const transfer = new DataTransfer();
    for (const file of kept) transfer.items.add(file);
    input.files = transfer.files;
    chosen.replaceChildren(...kept.map(row));
    chosen.dataset.total = total();
    chosen.hidden = !kept.length;
    if (hasChanged) changed();
  }

  // How much of the limits is used.
  function total() {
    const bytes = kept.reduce((sum, { size }) => sum + size, 0);
    return `${kept.length} of ${counted(most, "file")}, ${inMebibytes(bytes)} of ${mostBytes / 2 ** 20} MiB`;
  }

  function row(file) {
    const item = document.createElement("li"), name = document.createElement("span"), remove = document.createElement("button");
    if (/^image\/(png|jpeg|gif|webp)$/.test(file.type)) item.append(thumbnail(file));
    name.textContent = visible(file.name);
    remove.type = "button";
    remove.className = "quiet small";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", `Remove ${visible(file.name)}`);
    remove.addEventListener("click", () => {
      const at = kept.indexOf(file);
      keep(kept.filter((one) => one !== file));
      (chosen.querySelectorAll("button")[Math.min(at, kept.length - 1)] ?? input).focus();
    });
    item.append(name, remove);
    return item;
  }

  input.addEventListener("change", () => add(input.files));
  text.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return; // a copied table also contains a picture of it
    event.preventDefault();
    add(files);
  });
  area.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files") || input.disabled) return;
    event.preventDefault();
    marked.classList.add("dropping");
  });
  area.addEventListener("dragleave", (event) => area.contains(event.relatedTarget) || marked.classList.remove("dropping"));
  area.addEventListener("drop", (event) => {
    marked.classList.remove("dropping");
    if (!event.dataTransfer.files.length || input.disabled) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
  if (input.files.length) add(input.files); // files that the browser kept over a reload

  // sent(these): the server has them; files that were added meanwhile belong to the next prompt.
  return { files: () => [...kept], sent: (these) => keep(kept.filter((file) => !these.includes(file))) };
}

function inMebibytes(bytes) {
  return bytes < 2 ** 20 / 10 ? "less than 0.1" : (bytes / 2 ** 20).toFixed(1);
}

function isSame(one, other) {
  return one.name === other.name && one.size === other.size && one.lastModified === other.lastModified;
}

function thumbnail(file) {
  const image = document.createElement("img"), reader = new FileReader();
  image.alt = "";
  reader.addEventListener("load", () => (image.src = reader.result));
  reader.readAsDataURL(file);
  return image;
}
