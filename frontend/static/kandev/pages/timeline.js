import "../frame.js";
import "../attention.js";
import "../timeline.js";
import "../list.js";
