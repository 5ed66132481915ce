import "../frame.js";
import "../attention.js";
