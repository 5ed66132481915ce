// The page's policy takes no inline styles, and xterm writes them. What it writes goes through the CSSOM
// instead, which the policy leaves to scripts of our own; so the policy needs no exception.

const setAttribute = Element.prototype.setAttribute;

// Call once, before a terminal is made.
export function allowStylesOfScripts() {
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
}

// Whatever <style> elements make() makes become style sheets of the document.
export function withSheets(make) {
  const createElement = document.createElement;
  document.createElement = function (name, options) {
    // A style element that is empty is refused, too: what stands for it is a template, which is never shown.
    return name === "style" ? asSheet(createElement.call(document, "template")) : createElement.call(document, name, options);
  };
  try {
    return make();
  } finally {
    delete document.createElement;
  }
}

function asSheet(standIn) {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  let text = "";
  Object.defineProperty(standIn, "textContent", {
    get: () => text,
    set: (css) => sheet.replaceSync((text = css)),
  });
  return standIn;
}
