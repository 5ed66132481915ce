// What the user has viewed: versions of files, so a file that changes again is not viewed. The server keeps the marks.

import { ask } from "./workspace.js";

const panel = document.getElementById("panel-changes");
let versions = new Set();

// Without the marks, everything else is still shown.
export async function loadViewed() {
  try {
    versions = new Set((await ask(`${panel.dataset.review}viewed/`)).versions);
  } catch {
    versions = new Set();
  }
}

export function isViewed({ version }) {
  return versions.has(version);
}

// Throws if the server has not stored it.
export async function setViewed({ version }, viewed) {
  if (viewed) versions.add(version);
  else versions.delete(version);
  await ask(`${panel.dataset.review}viewed/`, { method: "POST", body: { version, viewed } });
}
