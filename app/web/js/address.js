// The address bar: it holds everything that is not at its default, under the names that the options have in HTTP.

import { DEFAULTS, change, onChange, state } from "./state.js";

const TEXTS = ["show", "example", "model", "method", "colormap", "scale", "inside"];
const LISTS = ["layer", "compare"];
const CLASSES = ["target", "against"];
const OURS = ["image", "format", "view", "values", "top"]; // in HTTP; the page decides about them by itself
const PAUSE = 250; // milliseconds: browsers refuse to change the address at every step of a slider

export function toQuery(from) {
  const query = new URLSearchParams();
  for (const name of [...TEXTS, "by", ...CLASSES, "alpha"]) {
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
    else if (name === "by") found.by = value === "layer" ? "layer" : "method";
    else if (LISTS.includes(name)) found[name] = [...new Set([...(found[name] ?? []), value])];
    else if (CLASSES.includes(name)) found[name] = /^\d+$/.test(value) ? Number(value) : value;
    else if (name === "alpha") found.alpha = Math.min(1, Math.max(0, Number(value || NaN)));
    else if (name === "off") found.off = value.split(",").filter((one) => /^\d+$/.test(one)).map(Number);
    else if (!OURS.includes(name)) found.options[name] = value;
  }
  if (Number.isNaN(found.alpha)) delete found.alpha;
  return found;
}

export function readAddress() {
  change(fromQuery(new URLSearchParams(location.search)));
}

/** The address of what is chosen. */
export function address() {
  const query = toQuery(state).toString();
  return `${location.origin}${location.pathname}${query ? `?${query}` : ""}`;
}

export function keepAddress() {
  let waiting = null;
  const keep = () => {
    if (address() !== location.href) history.replaceState(null, "", address());
  };
  onChange((patch) => {
    clearTimeout(waiting);
    if ("alpha" in patch) waiting = setTimeout(keep, PAUSE);
    else keep();
  });
}
