import "../frame.js";
import "../attention.js";
import "../list.js";
import "../inbox.js";
import "../answer_dialog.js";
