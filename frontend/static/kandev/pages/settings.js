import "../frame.js";
import "../attention.js";
import "../list.js";
import "../notice_settings.js";
import "../device_settings.js";
