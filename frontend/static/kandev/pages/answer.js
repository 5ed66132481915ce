import "../frame.js";
import "../attention.js";
import "../list.js";
import "../answers.js";
