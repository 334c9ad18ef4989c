// The address bar: it holds everything that is not at its default, under the names that the options have in HTTP.

import { DEFAULTS, change, onChange, state } from "./state.js";

const TEXTS = ["show", "example", "model", "method", "colormap", "scale", "by", "inside"];
const LISTS = ["layer", "compare"];
const CLASSES = ["target", "against"];

export function toQuery(from) {
  const query = new URLSearchParams();
  for (const name of [...TEXTS, ...CLASSES, "alpha"]) {
    if (from[name] !== DEFAULTS[name]) query.set(name, from[name]);
  }
  for (const name of LISTS) for (const value of from[name]) query.append(name, value);
  if (from.off.length) query.set("off", from.off.join(","));
  for (const [name, value] of Object.entries(from.options)) query.set(name, value);
  return query;
}

/** Reads a query; what the page has no name for is an option of the method. */
export function fromQuery(query) {
  const found = { options: {} };
  for (const [name, value] of query) {
    if (TEXTS.includes(name)) found[name] = value;
    else if (LISTS.includes(name)) (found[name] ??= []).push(value);
    else if (CLASSES.includes(name)) found[name] = /^\d+$/.test(value) ? Number(value) : value;
    else if (name === "alpha") found.alpha = Math.min(1, Math.max(0, Number(value) || 0));
    else if (name === "off") found.off = value.split(",").filter((one) => /^\d+$/.test(one)).map(Number);
    else found.options[name] = value;
  }
  return found;
}

export function readAddress() {
  change(fromQuery(new URLSearchParams(location.search)));
}

export function keepAddress() {
  onChange(() => {
    const query = toQuery(state).toString();
    const wanted = `${location.pathname}${query ? `?${query}` : ""}`;
    if (wanted !== `${location.pathname}${location.search}`) history.replaceState(null, "", wanted);
  });
}
