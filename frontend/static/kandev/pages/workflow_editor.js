import "../frame.js";
import "../attention.js";
import "../list.js";
import "../workflow_editor.js";
