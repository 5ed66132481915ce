// The files of the next prompt: chosen, pasted or dropped, shown with a thumbnail, and uploaded with the form. The file
// input holds them, so the form sends the same with and without this file.

import * as draft from "./draft.js";

const composer = document.getElementById("composer");
const input = document.getElementById("attach");
const chosen = document.getElementById("chosen");
const upload = document.getElementById("upload");
const talk = document.getElementById("talk");
const most = Number(input.dataset.files), mostBytes = Number(input.dataset.bytes);
const SILENCE = 30000; // an upload that makes no progress for so long has failed

let kept = []; // what the input holds
let tell = () => {};

export function begin(shown) {
  tell = shown;
  input.addEventListener("change", () => add(input.files));
  composer.elements.text.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return; // a table is copied as a picture, too
    event.preventDefault();
    add(files);
  });
  talk.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files") || input.disabled) return;
    event.preventDefault();
    composer.classList.add("dropping");
  });
  talk.addEventListener("dragleave", (event) => talk.contains(event.relatedTarget) || composer.classList.remove("dropping"));
  talk.addEventListener("drop", (event) => {
    composer.classList.remove("dropping");
    if (!event.dataTransfer.files.length || input.disabled) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
  if (input.files.length) add(input.files); // what a browser kept over a reload
}

export function files() {
  return [...kept];
}

// The server has them: what was added meanwhile belongs to the next prompt.
export function sent(these) {
  keep(kept.filter((file) => !these.includes(file)));
}

function add(more) {
  const next = [...kept, ...[...more].filter((file) => !kept.some((one) => isSame(one, file)))];
  const tooMany = next.length > most, tooMuch = next.reduce((sum, { size }) => sum + size, 0) > mostBytes;
  if (tooMany) tell(`A prompt carries at most ${most} files.`);
  else if (tooMuch) tell(`The files of a prompt may have ${mostBytes / 2 ** 20} MiB together.`);
  else tell("");
  keep(tooMany || tooMuch ? kept : next);
  document.getElementById("announce").textContent = kept.length ? `${kept.length} files attached` : "";
}

function isSame(one, other) {
  return one.name === other.name && one.size === other.size && one.lastModified === other.lastModified;
}

function keep(next) {
  const hasChanged = next.length !== kept.length;
  kept = next;
  const transfer = new DataTransfer();
  for (const file of kept) transfer.items.add(file);
  input.files = transfer.files;
  chosen.replaceChildren(...kept.map(row));
  chosen.hidden = !kept.length;
  if (hasChanged) draft.changed();
}

function row(file) {
  const item = document.createElement("li"), name = document.createElement("span"), remove = document.createElement("button");
  if (/^image\/(png|jpeg|gif|webp)$/.test(file.type)) item.append(thumbnail(file));
  name.textContent = file.name;
  remove.type = "button";
  remove.className = "quiet small";
  remove.textContent = "Remove";
  remove.setAttribute("aria-label", `Remove ${file.name}`);
  remove.addEventListener("click", () => {
    const at = kept.indexOf(file);
    keep(kept.filter((one) => one !== file));
    (chosen.querySelectorAll("button")[Math.min(at, kept.length - 1)] ?? input).focus();
  });
  item.append(name, remove);
  return item;
}

function thumbnail(file) {
  const image = document.createElement("img"), reader = new FileReader();
  image.alt = "";
  reader.addEventListener("load", () => (image.src = reader.result));
  reader.readAsDataURL(file);
  return image;
}

// Like fetch, with the progress shown: fetch does not tell how much of a body has been sent.
export function post(action, body) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let timer;
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(() => request.abort(), SILENCE);
    };
    const end = (settle, value) => {
      clearTimeout(timer);
      upload.hidden = true;
      settle(value);
    };
    request.open("POST", action);
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      wait();
      upload.hidden = false;
      upload.value = total ? loaded / total : 0;
    });
    request.addEventListener("load", () => {
      const later = request.getResponseHeader("Retry-After");
      const headers = later ? { "Retry-After": later } : {};
      end(resolve, new Response(request.responseText, { status: request.status, headers }));
    });
    for (const name of ["error", "abort"]) request.addEventListener(name, () => end(reject, new Error(name)));
    wait();
    request.send(body);
  });
}
