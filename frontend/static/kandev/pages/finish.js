import "../frame.js";
import "../attention.js";
import "../list.js";
