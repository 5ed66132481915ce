// Make foreign text safe to show, as the server does (sessions_app/redaction/visible_text.py): characters that change the
// text direction, are invisible, or control a terminal become visible.

const NAMES = {
  "\u00ad": "SHY", "\u034f": "CGJ", "\u061c": "ALM", "\u180e": "MVS", "\u200b": "ZWSP", "\u200e": "LRM", "\u200f": "RLM",
  "\u2028": "LS", "\u2029": "PS", "\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO",
  "\u2060": "WJ", "\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI", "\ufeff": "BOM",
};
const COLOURS = /\x1b\[[0-9;:]*m/g;
const STRANGE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\u{13430}-\u{1343f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e01ef}]/gu;
// Joiners and variation selectors where no script and no picture needs them.
const JOINED = "[\\u0600-\\u0dff\\u0f00-\\u109f\\u1780-\\u180a\\u2190-\\u2bff\\ufe0f\\u{1f000}-\\u{1faff}]";
const PICTURED = "[0-9#*\\u00a9\\u00ae\\u203c-\\u3299\\u{1f000}-\\u{1faff}]";
const STRAY = [
  ["⟦ZWNJ⟧", new RegExp(`(?<!${JOINED})\\u200c|\\u200c(?!${JOINED})`, "gu")],
  ["⟦ZWJ⟧", new RegExp(`(?<!${JOINED})\\u200d|\\u200d(?!${JOINED})`, "gu")],
  ["⟦VS15⟧", new RegExp(`(?<!${PICTURED})\\ufe0e`, "gu")],
  ["⟦VS16⟧", new RegExp(`(?<!${PICTURED})\\ufe0f`, "gu")],
];

// More combining characters in a row than any script needs: a browser takes the square of their number to draw them.
const MARKS = /([\p{M}\p{Cf}]{30})([\p{M}\p{Cf}]+)/gu;

export function visible(text) {
  const plain = String(text ?? "").replace(COLOURS, "").replace(/\r\n?/g, "\n").replace(STRANGE, shown);
  const named = STRAY.reduce((sofar, [name, stray]) => sofar.replace(stray, name), plain);
  return named.replace(MARKS, (_, kept, rest) => `${kept}⟦+${[...rest].length} marks⟧`);
}

// A number with its unit, such as "1 byte" or "1,234 bytes"; the unit is the singular.
export function counted(number, unit) {
  return `${number.toLocaleString()} ${unit}${number === 1 ? "" : "s"}`;
}

function shown(sign) {
  const code = sign.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `⟦${NAMES[sign] ?? code.toString(16).toUpperCase().padStart(2, "0")}⟧`;
}
