import "../frame.js";
import "../attention.js";
import "../session.js";
