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
    const button = (text, name, value) =>
      make("button", { type: "button", class: name, textContent: text, on: { click: () => finish(value()) } });
    const dialog = make(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      make("header", {}, heading, close),
      content,
      make(
        "footer",
        {},
        ...extra.map(([text, value]) => button(text, "quiet", () => value)),
        button(accept, "main", result),
      ),
    );
    let given = null;
    const finish = (value) => {
      given = value;
      dialog.close();
    };
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

/** A search field of a dialog; calls `filter(text)` when the text changes. */
export function search(label, filter) {
  const given = { type: "search", placeholder: label, "aria-label": label, autocomplete: "off" };
  // On touch screens the focus would open a keyboard over the list.
  const input = make("input", { ...given, autofocus: !isTouched() });
  input.addEventListener("input", () => filter(input.value.trim().toLowerCase()));
  return input;
}
