// What an explanation costs before it is asked for: passes of the model, and about how long they take.

import { count } from "./words.js";

const MANY = 30; // passes from which a method's name tells its cost
const USEFUL = 0.2; // share of an option's default below which a map tells too little

/** The value of an expression of whole numbers and names, such as `1 + channels * (samples - 1)`; NaN if a name is unknown. */
function evaluate(text, values) {
  const parts = text.match(/\d+|\w+|\/\/|[-+*()]/g);
  const chain = (operand, operations) => {
    let value = operand();
    while (parts[0] in operations) value = operations[parts.shift()](value, operand());
    return value;
  };
  const sum = () => chain(product, { "+": (left, right) => left + right, "-": (left, right) => left - right });
  const product = () => chain(atom, { "*": (left, right) => left * right, "//": (left, right) => Math.floor(left / right) });
  const atom = () => {
    const part = parts.shift();
    if (part !== "(") return Number(values[part] ?? part);
    const value = sum();
    parts.shift(); // the closing parenthesis
    return value;
  };
  return sum();
}

/**
 * Passes and seconds of a method with these options, whether these seconds are only a bound, and whether the service refuses so
 * many passes; passes are NaN if unknown, seconds null.
 */
export function costOf({ cost, options: schemas, quantities, seconds_per_pass: pace, most_per_pass: bound, most_passes: most, partial }, options = {}, layer = []) {
  const usual = Object.fromEntries(Object.entries(schemas).map(([name, schema]) => [name, schema.default]));
  const text = `${cost.forwards} + ${cost.backwards}`;
  const isCounted = (name) => new RegExp(`\\b${name}\\b`).test(text);
  // Of a number that is refused, the passes are unknown.
  const isPossible = ([name, value]) => !isCounted(name) || (/^\d+$/.test(value) && !(Number(value) < schemas[name]?.minimum));
  if (!Object.entries(options).every(isPossible)) return { passes: NaN, partial, seconds: null, isBound: false, isRefused: false };
  // Quantities are those of the usual layers and options.
  const isUsual = !layer.length && Object.keys(options).every((name) => isCounted(name) || name === "sign");
  const passes = options.smooth === "tta" ? NaN : evaluate(text, { ...(isUsual && quantities), ...usual, ...options });
  const seconds = (pace ?? bound) && passes ? passes * (pace ?? bound) : null;
  return { passes, partial, seconds, isBound: !pace, isRefused: most !== null && passes > most };
}

/** A cost in words, such as “1,001 passes, about 9 s”; short ones run only a part of the model. Empty if it is unknown. */
export function costInWords({ passes, partial, seconds, isBound }) {
  if (!passes) return "";
  const said = `${count(passes)} ${partial ? "short " : ""}${passes === 1 ? "pass" : "passes"}`;
  if (seconds === null) return said;
  return `${said}, ${seconds < 1 ? "less than a second" : `${isBound ? "at most" : "about"} ${roughly(seconds)}`}`;
}

function roughly(seconds) {
  if (seconds < 55) return `${seconds < 20 ? Math.round(seconds) : 5 * Math.round(seconds / 5)} s`;
  return `${Math.round(seconds / 60) || 1} min`;
}

/** The name of a method, with its cost if that is high, or that the service refuses it as too long. */
export function nameWithCost(method) {
  const cost = costOf(method);
  if (!(cost.passes >= MANY)) return method.name;
  return `${method.name} (${cost.isRefused ? `${costInWords({ ...cost, seconds: null })}: too long here` : costInWords(cost)})`;
}

/** How much of an option fits into the limit, for a method whose cost grows with it; 0 if that is too little to be of use. */
export function affordable(method, option, limit) {
  const { seconds } = costOf(method);
  const share = seconds ? (0.8 * limit) / seconds : 0;
  return share >= USEFUL ? Math.floor(share * method.options[option].default) : 0;
}
