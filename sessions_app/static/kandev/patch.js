// Makes one piece of the page like another, touching only what differs: what is read or selected stays.

export function patch(shown, made) {
  patchAttributes(shown, made);
  patchChildren(shown, made);
}

function patchAttributes(shown, made) {
  for (const { name } of [...shown.attributes]) {
    if (!made.hasAttribute(name) && !(name === "open" && shown.dataset.key)) shown.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
}

function patchChildren(shown, made) {
  const next = [...made.childNodes];
  for (const [index, node] of next.entries()) {
    const old = shown.childNodes[index];
    if (!old) shown.append(node);
    else if (!old.isEqualNode(node)) renew(old, node);
  }
  while (shown.childNodes.length > next.length) shown.lastChild.remove();
}

function renew(old, node) {
  if (old.nodeType === Node.ELEMENT_NODE && old.nodeName === node.nodeName) return patch(old, node);
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.data.length)); // a selection in it stays
    else old.data = node.data;
    return;
  }
  old.replaceWith(node);
}
