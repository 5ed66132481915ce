// Gives xterm the output of a program without letting it freeze the page: ten bytes can ask for two thousand million new
// lines, and xterm does all that one write asks for at once. So each write is small, and the page gets its turn in
// between; what a few bytes of it can ask for is limited to what fits the screen.

const PIECE = 1024; // bytes
const MOST_JOINED = 16; // characters without a width in a row: the browser needs the square of their number to draw them
const MOST_LINKS = 1000; // xterm moves each one with each line
const BY_ROWS = ["L", "M", "S", "T"]; // insert and delete lines, scroll up and down
const BY_COLUMNS = ["I", "Z", "b"]; // tabs forward and back, repeat a character
const COLOURS = [4, 10, 11, 12]; // of the palette, of text, background and cursor
const RESETS_OF_COLOURS = [104, 110, 111, 112];
const QUESTION = /^[\d;?]{1,1000}$/;
const FIRST_MARK = 0x300; // below it, every printable character has a width

// Limit what `term` does for output; call once. This needs parts of xterm that have no public name.
export function limitOutput(term) {
  for (const final of BY_ROWS) limitCount(term, final, () => term.rows);
  for (const final of BY_COLUMNS) limitCount(term, final, () => term.cols);
  // A program may ask for colours, but not change them, because each change draws the screen again.
  for (const kind of COLOURS) term.parser.registerOscHandler(kind, (words) => !QUESTION.test(words));
  for (const kind of RESETS_OF_COLOURS) term.parser.registerOscHandler(kind, () => true);
  term.parser.registerOscHandler(8, () => hasManyLinks(term._core));
  limitJoined(term._core);
}

// Write `bytes` in pieces, then call `done`.
export function writeInPieces(term, bytes, done) {
  const last = Math.max(0, Math.ceil(bytes.length / PIECE) - 1) * PIECE;
  for (let at = 0; at < last; at += PIECE) term.write(bytes.subarray(at, at + PIECE));
  term.write(bytes.subarray(last), done);
}

// A handler that returns false leaves the sequence, with the smaller number, to xterm's own handler.
function limitCount(term, final, most) {
  term._core.registerCsiHandler({ final }, ({ params }) => {
    params[0] = Math.min(params[0], most());
    return false;
  });
}

// Beyond the limit no text becomes a link, nor part of the last one.
function hasManyLinks(core) {
  const isFull = core._oscLinkService._dataByLinkId.size >= MOST_LINKS;
  if (isFull) core._inputHandler.setHyperlink(";");
  return isFull;
}

// The characters without a width that are too many are left out.
function limitJoined({ _inputHandler: handler, unicodeService }) {
  const print = handler.print.bind(handler);
  let joined = 0;
  handler.print = (codes, start, end) => {
    let kept = start;
    for (let at = start; at < end; at += 1) {
      const code = codes[at];
      joined = code >= FIRST_MARK && unicodeService.wcwidth(code) === 0 ? joined + 1 : 0;
      if (joined <= MOST_JOINED) codes[kept++] = code;
    }
    if (kept > start) print(codes, start, kept);
  };
}
