// A shell of the workspace. It runs in agentctl, so it survives a reload, a restart of the server or a lost
// connection; the scrollback restores its output.

import { jittered } from "./live.js";
import { isShown, show, whenShown } from "./tabs.js";
import { limitOutput, writeInPieces } from "./terminal_output.js";
import { alarm, button, fill, isReady, make, note, onWorkspace, opener, row } from "./workspace.js";

const panel = document.getElementById("panel-terminal"); // only for users who may use the terminal
const place = document.getElementById("terminal");
const ACK_EVERY = 256 * 1024; // bytes
const WINDOW = 4 * ACK_EVERY; // bytes that may be unacknowledged: the effect of Ctrl+C shows only after all of them are written
const IS_PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]+$/u; // no line ends, controls or invisible characters
const FIRST_PAUSE = 500, LONGEST_PAUSE = 5000;

const ENDS = {
  4400: "The terminal size is not supported. Resize the window, then try again.",
  4401: "You are logged out. Reload the page to log in.",
  4403: "On this executor, only administrators and trusted teams may open terminals, because agents are not isolated from the server.",
  4404: "This session no longer exists, or you no longer have access to it.",
  4410: "The terminal is open in another window.",
  4429: "Too many terminals or connections are open. Close one, then try again.",
};

const screen = make("div", "screen"), notes = make("div", "terminal-notes"), keys = row();
const text = new TextEncoder();
const setAttribute = Element.prototype.setAttribute;
let shell = "main", command = ""; // the command is typed into a new shell; the person runs it with Enter
let term = null, fit = null, socket = null, timer, failures = 0, exit = null, taken = 0, acked = 0;
let replayed = 0; // bytes of the replay that the terminal has not processed yet

if (panel) {
  whenShown("terminal", open);
  onWorkspace((what) => what === "state" && stateChanged());
  document.addEventListener("click", typeShown);
}

// Only a click on the command itself types it, and exactly what is shown is typed: the command was chosen by an agent,
// so an address, a stored value or a script must not stand for the person's consent. Enter is left to the person.
function typeShown({ target }) {
  const shown = target.closest?.("[data-types]")?.querySelector("code").textContent;
  if (shown && IS_PRINTABLE.test(shown)) login(shown);
}

// The agent's own login, in a shell that ends with it: the server then tries the waiting sessions again.
function login(words) {
  [shell, command] = ["login", words];
  if (socket) {
    socket.onclose = null;
    socket.close();
    socket = null;
  }
  show("terminal");
  if (term && isReady()) connect();
  panel.scrollIntoView({ block: "nearest" });
  term?.focus();
}

function stateChanged() {
  if (!term) return isShown("terminal") && open();
  isReady() ? connect() : lost();
}

async function open() {
  if (term) return fit.fit();
  if (!isReady()) return fill(place, [note("The workspace is not open, so there is no terminal."), row(opener())]);
  try {
    await begin();
  } catch {
    fill(place, [alarm("The terminal is not installed on this server."), note("Run `make setup` where npm is installed, then restart the server. Everything else works without it.")]);
  }
}

async function begin() {
  if ("missing" in panel.dataset) throw new Error("missing");
  const [{ Terminal }, { FitAddon }] = await Promise.all([import(panel.dataset.script), import(panel.dataset.fit), styled()]);
  if (term) return;
  allowStylesOfScripts();
  fill(place, [notes, screen, keys, make("p", "meta", "F6 leaves the terminal. The shell keeps running when you leave and when the server restarts.")]);
  term = new Terminal({ linkHandler: { activate: (_, address) => openLink(address) }, fontFamily: variable("--mono"), fontSize: 13, scrollback: 5000, cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches, theme: theme(), logLevel: "off" }); // each DEL would be an error in the console
  limitOutput(term);
  fit = new FitAddon();
  term.loadAddon(fit);
  withSheets(() => term.open(screen));
  fit.fit();
  term.onData((typed) => type(text.encode(typed)));
  term.onBinary((typed) => type(Uint8Array.from(typed, (sign) => sign.charCodeAt(0))));
  term.onResize(({ cols, rows }) => send({ resize: [cols, rows] }));
  term.attachCustomKeyEventHandler(leave);
  new ResizeObserver(() => panel.hidden || fit.fit()).observe(screen);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (term.options.theme = theme()));
  for (const [name, sign] of [["Esc", "\x1b"], ["Tab", "\t"], ["Ctrl+C", "\x03"], ["↑", "\x1b[A"], ["↓", "\x1b[B"]]) {
    keys.append(button(name, () => (type(text.encode(sign)), term.focus()), "small"));
  }
  connect();
}

// A link in the terminal's output was chosen by the program that wrote it, and its text may say something else.
function openLink(address) {
  const url = URL.parse(address);
  if (!url || !["http:", "https:"].includes(url.protocol) || url.username) return;
  if (confirm(`Open this address, which a program in the terminal chose?\n\n${url.href}`)) window.open(url.href, "_blank", "noopener,noreferrer");
}

function styled() {
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", href: panel.dataset.style });
  return new Promise((resolve, reject) => {
    Object.assign(link, { onload: resolve, onerror: reject });
    document.head.append(link);
  });
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The page's colours in a format that xterm supports.
function theme() {
  const [background, foreground, cursor, selectionBackground] = ["--sunken", "--text", "--accent", "--busy-back"].map((name) => {
    screen.style.color = `var(${name})`;
    return getComputedStyle(screen).color;
  });
  screen.style.color = "";
  return { background, foreground, cursor, cursorAccent: background, selectionBackground, ...(isDark(background) ? {} : LIGHT) };
}

const LIGHT = { blue: "#1c4fb3", brightBlue: "#1c4fb3", magenta: "#7a2a8c", brightMagenta: "#7a2a8c", black: "#1a2230", white: "#566173", yellow: "#7a4a00", brightBlack: "#566173", brightWhite: "#1a2230", brightYellow: "#7a4a00", brightGreen: "#146439", green: "#146439", cyan: "#0b5c6b", brightCyan: "#0b5c6b" };

function isDark(colour) {
  const parts = colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  return parts.reduce((sum, part) => sum + part) < 384;
}

function leave(event) {
  if (event.key !== "F6") return true;
  event.preventDefault();
  document.getElementById("tab-terminal").focus();
  return false;
}

// --- the connection ---

function connect() {
  clearTimeout(timer);
  if (socket) return;
  const size = `shell=${shell}&cols=${term.cols}&rows=${term.rows}&window=${WINDOW}`;
  socket = new WebSocket(new URL(`${panel.dataset.socket}?${size}`, location.origin.replace(/^http/, "ws")));
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? receive(JSON.parse(data)) : write(new Uint8Array(data)));
  socket.onclose = ({ code }) => closed(code);
}

function receive(frame) {
  if ("shell" in frame) {
    failures = taken = acked = 0;
    exit = null;
    term.reset(); // its scrollback follows
    // It contains requests of programs to the terminal. Answering again would type the answers into the shell.
    replayed = frame.replay ?? 0;
    term.options.disableStdin = replayed > 0;
    fill(notes, []);
    send({ resize: [term.cols, term.rows] });
    if (command && frame.new !== false) type(text.encode(command));
    if (command) term.focus();
    command = "";
  }
  if ("exit" in frame) exit = frame.exit;
  if ("error" in frame) fill(notes, [alarm(frame.error)]);
}

function write(bytes) {
  const from = socket;
  writeInPieces(term, bytes, () => {
    if (from !== socket) return;
    taken += bytes.length;
    if (replayed > 0 && taken >= replayed) {
      replayed = 0;
      term.options.disableStdin = false;
    }
    if (taken - acked < ACK_EVERY) return;
    acked = taken;
    send({ ack: taken });
  });
}

function type(bytes) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(bytes);
  else if (socket?.readyState === WebSocket.CONNECTING) socket.addEventListener("open", ({ target }) => target.send(bytes));
}

function send(frame) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function closed(code) {
  socket = null;
  if (code === 1000 && shell === "login") return loggedIn();
  if (code === 1000) return ended(exit === null || exit === 0 ? "The shell has ended." : `The shell has ended with ${exit < 0 ? `signal ${-exit}` : `code ${exit}`}.`, "New shell");
  if (code in ENDS) return ended(ENDS[code], code === 4410 ? "Use it here" : "Try again");
  if (!isReady()) return lost();
  failures += 1;
  fill(notes, [make("p", "none", "Connection lost. The shell keeps running; reconnecting…")]);
  timer = setTimeout(connect, jittered(Math.min(FIRST_PAUSE * 2 ** failures, LONGEST_PAUSE)));
}

function loggedIn() {
  shell = "main";
  const how = exit === 0 ? "The login has ended." : `The login has ended with ${exit < 0 ? `signal ${-exit}` : `code ${exit}`}.`;
  ended(`${how} Kandev now retries the sessions that wait for it.`, "New shell");
}

function lost() {
  clearTimeout(timer);
  fill(notes, [note("The workspace was closed, and its shells have ended."), row(opener())]);
}

function ended(words, again) {
  const way = button(again, () => (fill(notes, []), connect(), term.focus()), "small");
  fill(notes, [make("p", "none", words), row(way)]);
}

// --- styles of xterm ---

// The page's content security policy forbids inline styles, which xterm writes. They are set through the CSSOM
// instead, which the policy allows for our own scripts, so it needs no exception.

// Call once, before a terminal is created.
function allowStylesOfScripts() {
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
}

// The <style> elements that make() creates become style sheets of the document.
function withSheets(make) {
  const createElement = document.createElement;
  document.createElement = function (name, options) {
    // The policy blocks even an empty style element, so a template, which is never shown, takes its place.
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
