// Dialogs that ask for a choice.

import { isTouched, make } from "./dom.js";

/**
 * Shows a dialog. It returns `result()` if `accept` was pressed, null if it was closed.
 * `extra` lists further buttons: [text, value to return].
 */
export function ask(title, content, { accept, result, extra = [] }) {
  return new Promise((answer) => {
    const heading = make("h2", { id: "dialog-title", textContent: title });
    const close = make("button", { type: "button", class: "plain", "aria-label": "Close", textContent: "✕" });
    const optional = ([text, value]) =>
      make("button", { type: "button", class: "quiet", textContent: text, on: { click: () => finish(value) } });
    const form = make(
      "form",
      {},
      make("header", {}, heading, close),
      content,
      make("footer", {}, ...extra.map(optional), make("button", { class: "main", textContent: accept })),
    );
    const dialog = make("dialog", { "aria-labelledby": "dialog-title" }, form);
    let given = null;
    const finish = (value) => {
      given = value;
      dialog.close();
    };
    form.addEventListener("submit", (event) => { // by the button, or by Enter in any of its fields
      event.preventDefault();
      finish(result());
    });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * A search field of a dialog; calls `filter(text)` when the text changes.
 * Enter chooses the first match that can be chosen, unless one of those listed is chosen.
 */
export function search(label, filter) {
  const given = { type: "search", placeholder: label, "aria-label": label, autocomplete: "off" };
  // On touch screens the focus would open a keyboard over the list.
  const input = make("input", { ...given, autofocus: !isTouched() });
  input.addEventListener("input", () => filter(input.value.trim().toLowerCase()));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !input.value.trim()) return;
    const matches = [...input.form.querySelectorAll(":is([type=radio], [type=checkbox]):enabled")];
    if (!matches.length) event.preventDefault();
    else if (!matches.some((match) => match.checked)) matches[0].click();
  });
  return input;
}
