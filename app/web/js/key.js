// Requests with an API key, which is asked for when the service requires one and kept until the tab is closed.

import { ask } from "./dialog.js";
import { make } from "./dom.js";

const STORED = "seewhy-key";
const USABLE = /^[\x21-\x7e]+$/; // characters allowed in a header
let question = null;

/** Like `fetch`. If the service requires a key, it is asked for; without one the response is the 401. */
export async function keyedFetch(path, given) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const headers = new Headers(given.headers);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...given, headers });
    if (response.status !== 401) return response;
    if (sessionStorage.getItem(STORED) !== key) continue; // another request has set a key meanwhile
    question ??= askForKey(key).finally(() => { question = null; });
    if (!(await question)) return response;
  }
}

/** Asks for a key; returns whether there is one now. */
async function askForKey(refused) {
  const text = refused ? "This key is not valid. Ask the operator of this service for another." : "Ask the operator of this service for a key.";
  const input = make("input", { id: "key", type: "password", autocomplete: "off", autofocus: true });
  const content = make("div", { class: "body" }, make("label", { htmlFor: "key", textContent: text }), input);
  const key = await ask("API key required", content, { accept: "Use this key", result: () => input.value.trim() });
  if (!USABLE.test(key ?? "")) return false;
  sessionStorage.setItem(STORED, key);
  return true;
}
