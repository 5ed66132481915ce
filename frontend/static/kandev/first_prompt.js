// The files of the first prompt, in the forms for new tasks and sessions.

import { createPicker } from "./picker.js";
import { visible } from "./plain_text.js";

for (const input of document.querySelectorAll("main form input[type=file][data-files]")) {
  const chosen = document.createElement("ul"), problem = document.createElement("p");
  chosen.className = "attached chosen";
  chosen.setAttribute("aria-label", "Files to send");
  chosen.hidden = true;
  problem.setAttribute("role", "alert");
  input.after(chosen, problem);
  createPicker({
    input, chosen, text: input.form.querySelector("textarea"), area: input.form, marked: input.form,
    tell: (why) => (problem.textContent = visible(why)),
  });
}
