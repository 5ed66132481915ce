import "../frame.js";
import "../attention.js";
import "../session.js";
import "../keys.js";
import "../sessions.js";
