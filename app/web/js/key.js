// Requests with a key of the service: asked for when the service wants one, and kept until the tab is closed.

import { ask } from "./dialog.js";
import { make } from "./dom.js";

const STORED = "seewhy-key";
const USABLE = /^[\x21-\x7e]+$/; // what a header can hold
let question = null;

/** Fetches as `fetch` does. Where the service wants a key, one is asked for; without one the answer is its 401. */
export async function keyedFetch(path, given) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const headers = new Headers(given.headers);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...given, headers });
    if (response.status !== 401) return response;
    if (sessionStorage.getItem(STORED) !== key) continue; // another request has asked meanwhile
    question ??= askForKey(key).finally(() => { question = null; });
    if (!(await question)) return response;
  }
}

/** Asks for a key; tells whether there is one now. */
async function askForKey(refused) {
  const said = refused ? "This key is not accepted. Ask who runs this service for another." : "Ask who runs this service for one.";
  const input = make("input", { id: "key", type: "password", autocomplete: "off", autofocus: true });
  const content = make("div", { class: "body" }, make("label", { htmlFor: "key", textContent: said }), input);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") input.closest("dialog").querySelector("button.main").click();
  });
  const key = await ask("A key is needed", content, { accept: "Use this key", result: () => input.value.trim() });
  if (!USABLE.test(key ?? "")) return false;
  sessionStorage.setItem(STORED, key);
  return true;
}
