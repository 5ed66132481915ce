// Make foreign text safe to show, as the server does (sessions_app/domain/sanitizing.py): characters that change the
// text direction, are invisible, or control a terminal become visible.

const NAMES = {
  "\u061c": "ALM", "\u200b": "ZWSP", "\u200e": "LRM", "\u200f": "RLM", "\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF",
  "\u202d": "LRO", "\u202e": "RLO", "\u2060": "WJ", "\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI",
  "\ufeff": "BOM",
};
const COLOURS = /\x1b\[[0-9;:]*m/g;
const STRANGE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

export function visible(text) {
  return text.replace(COLOURS, "").replace(/\r\n?/g, "\n").replace(STRANGE, shown);
}

function shown(sign) {
  const code = sign.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `⟦${NAMES[sign] ?? code.toString(16).toUpperCase()}⟧`;
}
