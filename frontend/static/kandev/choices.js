// The agent's settings in the composer: each is requested as soon as it is chosen, and shown as pending until the agent
// has answered. A prompt that is sent meanwhile waits until the server has the choice.

const place = document.getElementById("part-choices");
const PAUSE = 400; // the arrow keys go through the choices of a closed list, and only the last of them counts

const timers = new Map(); // id of a setting: [timer, value]
const refused = new Map(); // id of a setting: why its newest choice was not stored
let requests = Promise.resolve();
let settle = async () => true;

// send(action, body): post a form. tell(text): show an error. changed(): let the next update show the server's state.
export function begin({ send, tell, changed }) {
  place.addEventListener("change", ({ target }) => target.matches("select") && choose(target.closest(".choice"), target.value));
  place.addEventListener("click", ({ target }) => {
    const button = target.closest("[role=switch]");
    if (!button || button.ariaBusy === "true") return;
    button.ariaBusy = "true";
    choose(button.closest(".choice"), button.value);
    flush();
  });

  const flush = () => [...timers.keys()].forEach(request);

  function choose(choice, value) {
    const { setting, type } = choice.dataset;
    choice.classList.add("waiting");
    clearTimeout(timers.get(setting)?.timer);
    timers.set(setting, { timer: setTimeout(() => request(setting), PAUSE), value, type });
  }

  function request(setting) {
    const { timer, value, type } = timers.get(setting);
    clearTimeout(timer);
    timers.delete(setting);
    requests = requests.then(() => post(setting, type, value));
  }

  async function post(setting, type, value) {
    const body = new FormData();
    for (const [name, content] of Object.entries({ setting, type, value })) body.set(name, content);
    refused.delete(setting);
    try {
      const { message } = await send(place.dataset.action, body);
      if (message) refused.set(setting, message);
    } catch {
      refused.set(setting, "The server did not answer. What you have chosen may not apply; the page shows it when it reconnects.");
    }
    tell([...refused.values()].join(" "));
    forget(setting);
    changed();
  }

  // What was chosen need not be kept: the next update shows what the server knows.
  function forget(setting) {
    if (timers.has(setting)) return;
    for (const option of place.querySelectorAll(`[data-setting="${CSS.escape(setting)}"] option`)) option.defaultSelected = option.selected;
  }

  // Said once more beside the prompt that waits for it: the next one is sent all the same.
  settle = async () => {
    flush();
    await requests;
    if (!refused.size) return true;
    tell([...refused.values(), "Your prompt was not sent. Send it again to send it with the present settings."].join(" "));
    refused.clear();
    return false;
  };
}

// Request what has just been chosen; false, and told, if the server has not taken all that was chosen since the last prompt.
export const settled = () => settle();
