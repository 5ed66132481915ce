// The changed files as a tree: folders with their counts, which can be folded, and in them a link to each file.

import { counted } from "./plain_text.js";
import { make } from "./workspace.js";

const MOST_OPEN = 300; // files; folders of more are folded at first
const folded = new Set(); // paths of folders that the user has folded

// `countsOf` returns the elements with the counts, and `linkOf` the link to a file with its number and its name.
export function treeOf(files, countsOf, linkOf) {
  const items = [];
  const root = { folders: new Map(), files: [] };
  files.forEach((file, number) => {
    const steps = file.path.split("/");
    const name = steps.pop() || file.path;
    let folder = root;
    for (const step of steps) {
      if (!folder.folders.has(step)) folder.folders.set(step, { folders: new Map(), files: [] });
      folder = folder.folders.get(step);
    }
    folder.files.push({ file, number, name });
  });
  const list = branch(root, "", { items, countsOf, linkOf, isOpen: files.length <= MOST_OPEN });
  list.classList.add("reviewed");
  return { list, items };
}

function branch({ folders, files }, path, shown) {
  const list = make("ul", "changed");
  for (const [name, folder] of folders) list.append(folderItem(name, folder, path, shown));
  for (const { file, number, name } of files) {
    const item = document.createElement("li");
    item.append(shown.linkOf(file, number, name));
    shown.items[number] = item;
    list.append(item);
  }
  return list;
}

function folderItem(first, folder, path, shown) {
  let name = first, inner = folder;
  while (!inner.files.length && inner.folders.size === 1) { // a folder with nothing but another one
    const [[next, deeper]] = inner.folders;
    name = `${name}/${next}`;
    inner = deeper;
  }
  const whole = `${path}${name}/`;
  const item = document.createElement("li"), details = document.createElement("details"), summary = document.createElement("summary");
  const sums = sumsOf(inner);
  summary.append(make("span", "path", `${name}/`), make("small", "", counted(sums.files, "file")), ...shown.countsOf(sums));
  details.open = shown.isOpen && !folded.has(whole);
  details.addEventListener("toggle", () => (details.open ? folded.delete(whole) : folded.add(whole)));
  details.append(summary, branch(inner, whole, shown));
  item.append(details);
  return item;
}

function sumsOf({ folders, files }) {
  const sums = { files: files.length, additions: 0, deletions: 0 };
  for (const { file } of files) {
    sums.additions += file.additions ?? 0;
    sums.deletions += file.deletions ?? 0;
  }
  for (const folder of folders.values()) {
    const inner = sumsOf(folder);
    for (const name of Object.keys(sums)) sums[name] += inner[name];
  }
  return sums;
}
