// The address bar: it holds everything that differs from its default, under the HTTP names of the options. Back and
// Forward move between questions about this picture and earlier ones, without reloading the page.

import { post } from "./api.js";
import { byId } from "./dom.js";
import { learn, methodNamed, modelName } from "./question.js";
import { DEFAULTS, asTarget, change, onChange, state } from "./state.js";
import { VIEWS } from "./tabs.js";

const TEXTS = ["show", "example", "model", "method", "colormap", "scale", "proof_fill", "inside", "reference", "mark", "look"];
const LISTS = ["layer", "compare", "models", "classes"];
const CLASSES = ["target", "against"];
const OURS = ["image", "format", "view", "values", "top"]; // HTTP options that the page sets itself
const STEPS = ["picture", "second", "show", "model", "method", "target", "against", "layer", "mark"]; // Back undoes a change of these
const PAUSE = 250; // milliseconds: browsers limit how often the address may change, as by a slider
const STRIDE = 500; // milliseconds: faster changes, as by arrow keys in a list, are one step
const KEPT = 8; // pictures that Back can show again

const pictures = [];
let amending = false;

function toQuery(from) {
  const query = new URLSearchParams();
  for (const name of [...TEXTS, "by", ...CLASSES, "alpha", "strongest"]) {
    if (from[name] !== DEFAULTS[name]) query.set(name, from[name]);
  }
  for (const name of LISTS) for (const value of from[name]) query.append(name, value);
  if (from.off.length) query.set("off", from.off.join(","));
  for (const [name, value] of Object.entries(from.options)) query.set(name, value);
  return query;
}

/** Parses a query; unknown names are options of the method. */
function fromQuery(query) {
  const patch = { options: {} };
  for (const [name, value] of query) {
    if (name === "method") patch.method = value.toLowerCase();
    else if (TEXTS.includes(name)) patch[name] = value;
    else if (name === "by") patch.by = value === "layer" ? "layer" : "method";
    else if (LISTS.includes(name)) patch[name] = [...new Set([...(patch[name] ?? []), value])];
    else if (CLASSES.includes(name)) patch[name] = asTarget(value);
    else if (name === "alpha") patch.alpha = Math.min(1, Math.max(0, Number(value || NaN)));
    else if (name === "strongest") patch.strongest = Math.min(99, Math.max(1, Number(value) || DEFAULTS.strongest));
    else if (name === "off") patch.off = value.split(",").filter((channel) => /^\d+$/.test(channel)).map(Number);
    else if (!OURS.includes(name)) patch.options[name] = value;
  }
  if (Number.isNaN(patch.alpha)) delete patch.alpha;
  return patch;
}

const read = () => fromQuery(new URLSearchParams(location.search));

/** Takes the state from the address; returns what it names that does not exist, as errors. The defaults are in its place. */
export async function readAddress() {
  change(read());
  await learn(null);
  const errors = [];
  const refuse = (field, message, name, others = {}) => {
    errors.push({ field, message: `${message} The default one is used.`, setting: name });
    change({ ...others, [name]: DEFAULTS[name] });
  };
  const isUnknown = (error) => error.errors?.some(({ field }) => field === "model");
  if (state.model) await learn(state.model).catch((error) => isUnknown(error) && refuse("model", error.message, "model"));
  if (state.method && !methodNamed(state.method)) {
    // The service checks the method before it reads the picture, and names near matches.
    const { message } = await post("/explain", new Blob(), [["method", state.method]]).catch((error) => error);
    refuse("method", message, "method", { options: {} });
  }
  const looks = [...byId("look").options].map(({ value }) => value);
  for (const [name, known, noun] of [["show", VIEWS, "tab"], ["look", looks, "view"]]) {
    if (!known.includes(state[name])) refuse("", `There is no ${noun} '${state[name]}'.`, name);
  }
  return errors;
}

function addressOf(from) {
  const query = toQuery(from).toString();
  return `${location.origin}${location.pathname}${query ? `?${query}` : ""}`;
}

/** The address of the current view with the name of its model, without the choices of the other views. */
export function link() {
  const { by, classes, compare, inside, mark, models, off, reference } = DEFAULTS;
  const others = {
    ...(state.show !== "explain" && { mark }),
    ...(state.show !== "compare" && { by, classes, compare, models }),
    ...(state.show !== "inside" && { inside, off }),
    ...(state.show !== "likeness" && { reference }),
  };
  return addressOf({ ...state, ...others, model: modelName() });
}

/** Changes the state without a step that Back would undo. */
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
    if (["alpha", "strongest"].some((name) => name in patch) && !amending) waiting = setTimeout(keep, PAUSE);
    else keep(!amending && STEPS.some((name) => name in patch));
  });
  window.addEventListener("popstate", restore);
}

function keepPicture(picture) {
  if (pictures.includes(picture)) return;
  pictures.push(picture);
  const old = pictures.length - 1 - KEPT;
  if (old < 0) return;
  URL.revokeObjectURL(pictures[old]?.url);
  pictures[old] = null;
}

/** Forgets the latest picture, to which Back does not return; then it takes the place of no other one. */
export function forgetPicture(picture) {
  if (pictures.at(-1) === picture) pictures.pop();
}

/** Restores the state in the address, after Back or Forward. */
async function restore() {
  await learn(read().model ?? null).catch(() => null); // which method belongs to its model
  document.querySelector("dialog")?.close();
  const { page, picture: place } = history.state ?? {};
  const picture = page === performance.timeOrigin ? pictures[place] : null;
  const wanted = { ...DEFAULTS, ...read() };
  // An uploaded picture that has been dropped cannot be restored: the question is asked about the current one.
  if (!picture && wanted.example && wanted.example !== state.example) {
    location.reload();
    return;
  }
  const patch = {};
  for (const name of [...TEXTS, ...LISTS, ...CLASSES, "by", "alpha", "strongest", "off", "options"]) {
    if (JSON.stringify(wanted[name]) !== JSON.stringify(state[name])) patch[name] = wanted[name];
  }
  if (!picture) delete patch.example;
  else if (picture !== state.picture) Object.assign(patch, { picture, answer: null });
  amend(patch);
}
