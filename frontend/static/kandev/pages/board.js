import "../frame.js";
import "../attention.js";
import "../list.js";
import "../first_prompt.js";
import "../board.js";
import "../board_tasks.js";
import "../task_moves.js";
import "../answer_dialog.js";
