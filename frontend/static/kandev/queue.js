// Queued prompts: edit their text in the list, and keep a text that can no longer be saved.

const composer = document.getElementById("composer");

// The server's answer to an edit. A text that was refused stays in its form; if somebody else has changed the prompt,
// which the list shows, saving once more replaces that version.
export function answered(form, answer) {
  const { text, version } = form.elements;
  if (answer.version) version.value = answer.version;
  if (answer.message) return;
  text.defaultValue = text.value;
  const details = form.closest("details");
  if (details) details.open = false;
}

function useText(form) {
  const { text } = composer.elements;
  text.value = text.value ? `${text.value}\n\n${form.elements.text.value}` : form.elements.text.value;
  text.dispatchEvent(new Event("input", { bubbles: true }));
  text.focus();
}

// Alt and an arrow key move a prompt; Ctrl+Enter saves its text, and Escape closes a text that is unchanged.
function keyed(event) {
  const entry = event.target.closest("#queue li"), form = event.target.closest(".queued-edit");
  if (form) return keyedInForm(event, form);
  const move = { ArrowUp: "move-up", ArrowDown: "move-down" }[event.altKey && event.key];
  const button = move && entry?.querySelector(`.move[formaction$="/${move}/"]:enabled`);
  if (!button) return;
  event.preventDefault();
  button.focus(); // which it gets again in the place where the prompt then is
  button.click();
}

function keyedInForm(event, form) {
  const isUnchanged = form.elements.text.value === form.elements.text.defaultValue;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(form.querySelector(".main"));
  else if (event.key === "Escape" && isUnchanged) close(form);
  else return;
  event.preventDefault();
}

function close(form) {
  const details = form.closest("details");
  if (!details) return;
  details.open = false;
  details.querySelector("summary").focus();
}

export function begin() {
  document.addEventListener("keydown", keyed);
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".unsaved button");
    if (!button) return;
    if (button.matches(".use-text")) useText(button.form);
    button.closest(".unsaved").remove();
  });
  document.addEventListener("reset", ({ target }) => {
    if (target.matches(".queued-edit")) target.closest("details").open = false;
  });
}
