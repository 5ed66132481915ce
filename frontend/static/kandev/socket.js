// Events from the server over a WebSocket. The page itself requests what it misses while there is no socket.

import { GONE, LOGGED_OUT, jittered } from "./live.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000; // a restart takes a few seconds
const PAUSE_WHEN_TOO_MANY = 30000;
const ACK_EVERY = 3000;
const ACK_AT = 500; // events: timers of a hidden page are slow

const ENDS = { 4401: LOGGED_OUT, 4404: GONE };
const TOO_MANY = 4429;

// path(): the address, for each connection. hear(frame): called with each frame. ended(text): called at the final end.
export function listen({ path, hear, ended }) {
  let socket = null, greeted = false, over = false, failures = 0, timer, ackTimer;
  const unacked = new Map(); // session: last seq
  let count = 0;

  // A socket that is being closed accepts nothing more, although its `onclose` has not been called yet.
  const isOpen = () => greeted && socket.readyState === WebSocket.OPEN;

  function connect() {
    clearTimeout(timer);
    if (socket || over) return;
    socket = new WebSocket(new URL(path(), location.origin.replace(/^http/, "ws")));
    socket.onmessage = ({ data }) => take(JSON.parse(data));
    socket.onclose = ({ code }) => closed(code);
  }

  function take(frame) {
    if (frame.type === "hello") {
      greeted = true;
      failures = 0;
    }
    if (frame.type === "event") note(frame);
    if (frame.type === "response") return; // to an unimportant request
    hear(frame);
  }

  function note({ session_id: session, seq }) {
    unacked.set(session, seq);
    count += 1;
    if (count >= ACK_AT) acknowledge();
    else ackTimer ??= setTimeout(acknowledge, ACK_EVERY);
  }

  function acknowledge() {
    clearTimeout(ackTimer);
    ackTimer = undefined;
    count = 0;
    if (isOpen()) for (const [session, seq] of unacked) socket.send(JSON.stringify({ type: "ack", session_id: session, seq }));
    unacked.clear();
  }

  function closed(code) {
    const wasOpen = greeted;
    socket = null;
    greeted = false;
    unacked.clear();
    if (code in ENDS) {
      over = true;
      return ended(ENDS[code]);
    }
    failures += 1;
    const pause = code === TOO_MANY ? PAUSE_WHEN_TOO_MANY : Math.min(FIRST_PAUSE * 2 ** failures, LONGEST_PAUSE);
    timer = setTimeout(connect, jittered(pause));
    if (wasOpen) hear({ type: "closed" });
  }

  // The server can be reached again: an earlier socket may be dead without having noticed.
  function renew() {
    if (greeted) socket.close();
    else connect();
  }

  // Send a request to the server; false while there is no socket.
  function say(action, payload) {
    if (!isOpen()) return false;
    socket.send(JSON.stringify({ type: "request", id: 0, action, payload }));
    return true;
  }

  connect();
  return { renew, say, isOpen };
}
