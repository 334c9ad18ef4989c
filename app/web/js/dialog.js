// Dialogs that ask for a choice.

import { isTouched, make } from "./dom.js";

/** Opens a dialog under a heading. A button or a click beside it closes it; then it is removed. */
export function openDialog(heading, ...parts) {
  heading.id = "dialog-title";
  const close = make("button", { class: "plain", "aria-label": "Close", textContent: "✕", on: { click: () => dialog.close() } });
  const on = { click: (event) => event.target === dialog && dialog.close(), close: () => dialog.remove() };
  const dialog = make("dialog", { "aria-labelledby": heading.id, on }, make("header", {}, heading, close), ...parts);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Asks in a dialog. It returns `result()` if `accept` was pressed, null if it was closed.
 * `extra` lists further buttons: [text, value to return].
 */
export function ask(title, content, { accept, result, extra = [] }) {
  return new Promise((answer) => {
    let given = null;
    const finish = (value) => {
      given = value;
      dialog.close();
    };
    const submit = (event) => { // by the button, or by Enter in any of the fields
      event.preventDefault();
      finish(result());
    };
    const optional = ([text, value]) =>
      make("button", { class: "quiet", textContent: text, on: { click: () => finish(value) } });
    const footer = make("footer", {}, ...extra.map(optional), make("button", { type: "submit", class: "main", textContent: accept }));
    const dialog = openDialog(make("h2", { textContent: title }), make("form", { on: { submit } }, content, footer));
    dialog.addEventListener("close", () => answer(given));
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
