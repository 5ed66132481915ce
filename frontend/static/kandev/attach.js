// The files of the next prompt of a session, and their upload with the form.

import * as composing from "./composer.js";
import * as draft from "./draft.js";
import { createPicker } from "./picker.js";

const composer = document.getElementById("composer");
const upload = document.getElementById("upload");
const SILENCE = 30000; // an upload that makes no progress for so long has failed

let picker;

export function begin(tell) {
  picker = createPicker({
    input: document.getElementById("attach"), chosen: document.getElementById("chosen"), text: composer.elements.text,
    area: document.getElementById("talk"), marked: composer, tell, changed,
  });
}

function changed() {
  draft.changed();
  composing.changed();
}

export function files() {
  return picker.files();
}

export function sent(these) {
  picker.sent(these);
}

// Like fetch, but with progress: fetch does not report how much of a body has been sent.
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
