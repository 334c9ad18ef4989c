// The options of a method, each with the control for its schema, its bounds, default and help.

import { byId, field, make, prose } from "./dom.js";
import { methodNamed } from "./question.js";
import { change, methodName, onChange, state } from "./state.js";

let filled = null; // the method whose options are shown

export function prepareOptions() {
  onChange((patch) => {
    if (filled !== methodName()) fill();
    else if ("options" in patch) refill();
    else if ("answer" in patch) refill(document.activeElement); // which may be typed into
  });
  byId("options-reset").addEventListener("click", () => change({ options: {} }));
  fill();
}

/** The options of a method without its layer, which has its own control. */
const listed = () => Object.entries(methodNamed(methodName())?.options ?? {}).filter(([name]) => name !== "layer");

/** Options that another method also has, which are kept when it is chosen. */
export function keptOptions(name) {
  const schemas = methodNamed(name)?.options ?? {};
  const fits = ([option, value]) => option in schemas && (schemas[option].enum?.includes(value) ?? true);
  return Object.fromEntries(Object.entries(state.options).filter(fits));
}

function fill() {
  filled = methodName();
  byId("options-list").replaceChildren(...listed().map(([name, schema]) => row(name, schema)));
  tell();
  byId("options").open ||= Object.keys(state.options).length > 0;
}

/** Shows the values of all options, except in one control. */
function refill(except = null) {
  for (const [name, schema] of listed()) {
    const control = byId("options-list").querySelector(`[name="${name}"]`);
    if (control !== except) fillIn(control, state.options[name] ?? standard(schema));
  }
  tell();
}

function tell() {
  const changed = Object.keys(state.options).length;
  byId("options-count").textContent = changed ? `${changed} changed` : "all at their defaults";
  byId("options-reset").hidden = !changed;
}

function row(name, schema) {
  const control = controlOf(schema, state.options[name]);
  control.name = name;
  control.addEventListener("change", () => keep(name, schema, control));
  const box = field(name, name.replaceAll("_", " "), control, [...prose(schema.description ?? ""), ` ${bounds(schema)}`]);
  if (schema.type === "boolean") box.classList.add("check");
  return box;
}

function keep(name, schema, control) {
  const value = schema.type === "boolean" ? String(control.checked) : control.value.trim();
  const { [name]: former, ...others } = state.options;
  const options = value === "" || value === standard(schema) ? others : { ...others, [name]: value };
  change({ options });
}

const standard = (schema) => (Array.isArray(schema.default) ? schema.default.join(",") : String(schema.default));

function fillIn(control, value) {
  if (control.type === "checkbox") control.checked = value === "true";
  else control.value = value;
}

function controlOf(schema, value) {
  let control;
  if (schema.type === "boolean") control = make("input", { type: "checkbox" });
  else if (schema.enum) control = make("select", {}, ...schema.enum.map((value) => new Option(value, value)));
  else if (schema.type === "integer" || schema.type === "number") {
    const { minimum, exclusiveMinimum, maximum, exclusiveMaximum, type } = schema;
    const most = maximum ?? (type === "integer" && exclusiveMaximum <= Number.MAX_SAFE_INTEGER ? exclusiveMaximum - 1 : undefined);
    control = make("input", { type: "number", inputMode: type === "integer" ? "numeric" : "decimal" });
    control.step = type === "integer" ? "1" : "any";
    if ((minimum ?? exclusiveMinimum) !== undefined) control.min = minimum ?? exclusiveMinimum;
    if (most !== undefined) control.max = most;
  } else control = make("input", { type: "text", autocomplete: "off", spellcheck: false });
  fillIn(control, value ?? standard(schema));
  return control;
}

/** The bounds and the default of a value, as text. */
function bounds(schema) {
  const { minimum, exclusiveMinimum, maximum, exclusiveMaximum } = schema;
  const said = [];
  if (schema.type === "integer" || schema.type === "number") {
    const low = minimum ?? exclusiveMinimum;
    const lower = low === undefined ? "" : exclusiveMinimum === undefined ? `From ${low}` : `Above ${low}`;
    const high = maximum ?? exclusiveMaximum;
    const upper = high === undefined || high > Number.MAX_SAFE_INTEGER ? "" : maximum === undefined ? `below ${high}` : `up to ${high}`;
    said.push([lower, upper].filter(Boolean).join(", "));
  }
  const usual = standard(schema);
  said.push(`default ${usual === "" ? "empty" : usual}`);
  const text = said.filter(Boolean).join("; ");
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}
