// The address bar: it holds everything that is not at its default, under the names that the options have in HTTP. Back
// and Forward lead from question to question, of this picture and of those before it, without loading the page anew.

import { DEFAULTS, change, onChange, state } from "./state.js";

const TEXTS = ["show", "example", "model", "method", "colormap", "scale", "inside"];
const LISTS = ["layer", "compare"];
const CLASSES = ["target", "against"];
const OURS = ["image", "format", "view", "values", "top"]; // in HTTP; the page decides about them by itself
const STEPS = ["picture", "show", "model", "method", "target", "against", "layer"]; // Back undoes a change of these
const PAUSE = 250; // milliseconds: browsers refuse to change the address at every step of a slider
const STRIDE = 500; // milliseconds: quicker changes, as with the arrow keys through a list, are one step
const KEPT = 8; // pictures that Back can show again

const pictures = [];
let amending = false;

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
    if (name === "method") found.method = value.toLowerCase();
    else if (TEXTS.includes(name)) found[name] = value;
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

const read = () => fromQuery(new URLSearchParams(location.search));

export function readAddress() {
  change(read());
}

function addressOf(from) {
  const query = toQuery(from).toString();
  return `${location.origin}${location.pathname}${query ? `?${query}` : ""}`;
}

/** The address of the view that is shown, without what is chosen in the others. */
export function link() {
  const { by, compare, inside, off } = DEFAULTS;
  const others = { ...(state.show !== "compare" && { by, compare }), ...(state.show !== "inside" && { inside, off }) };
  return addressOf({ ...state, ...others });
}

/** Changes what is shown without a step that Back would undo. */
export function amend(patch) {
  amending = true;
  change(patch);
  amending = false;
}

export function keepAddress() {
  let waiting = null;
  let stepped = -Infinity;
  const keep = (isStep) => {
    const address = addressOf(state);
    const entry = { page: performance.timeOrigin, picture: pictures.indexOf(state.picture) };
    const isKnown = history.state?.page === entry.page && history.state.picture >= 0;
    const isSame = isKnown && history.state.picture === entry.picture;
    if (address === location.href && isSame) return;
    const isNew = isStep && isKnown && performance.now() - stepped > STRIDE;
    if (isStep) stepped = performance.now();
    if (isNew) history.pushState(entry, "", address);
    else history.replaceState(entry, "", address);
  };
  onChange((patch) => {
    if (patch.picture) keepPicture(patch.picture);
    clearTimeout(waiting);
    if ("alpha" in patch && !amending) waiting = setTimeout(keep, PAUSE);
    else keep(!amending && STEPS.some((name) => name in patch));
  });
  window.addEventListener("popstate", restore);
}

function keepPicture(picture) {
  if (pictures.includes(picture)) return;
  pictures.push(picture);
  const old = pictures.length - 1 - KEPT;
  if (old < 0) return;
  URL.revokeObjectURL(pictures[old].url);
  pictures[old] = null;
}

/** Shows what the address says, after Back or Forward. */
function restore() {
  document.querySelector("dialog")?.close();
  const { page, picture: place } = history.state ?? {};
  const picture = page === performance.timeOrigin ? pictures[place] : null;
  const wanted = { ...DEFAULTS, ...read() };
  // A picture of one's own that is not kept any more cannot be had again: the question is put to the one that is shown.
  if (!picture && wanted.example && wanted.example !== state.example) {
    location.reload();
    return;
  }
  const patch = {};
  for (const name of [...TEXTS, ...LISTS, ...CLASSES, "by", "alpha", "off", "options"]) {
    if (JSON.stringify(wanted[name]) !== JSON.stringify(state[name])) patch[name] = wanted[name];
  }
  if (!picture) delete patch.example;
  else if (picture !== state.picture) Object.assign(patch, { picture, answer: null });
  amend(patch);
}
