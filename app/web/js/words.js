// Formatting of numbers and times.

/** A share in percent, to a tenth, below 1% to two digits, as the service writes it; one that is hardly 0 or 1 says so. */
export function percent(share) {
  if (share > 0 && share < 1e-4) return "<0.01%";
  if (share > 0.999 && share < 1) return ">99.9%";
  const size = share * 100;
  return `${size.toFixed(size >= 0.01 && size < 0.0995 ? 3 : size >= 0.0995 && size < 0.995 ? 2 : 1)}%`;
}

/** A probability in percent; one that is rounded to 1 is “>99.9%”, too. */
export const likelihood = (probability) => (probability === 1 ? ">99.9%" : percent(probability));

/** A change of a share in percentage points, or of another value, with its sign; empty if it is next to nothing. */
export function change(difference, isShare) {
  const size = isShare ? (100 * Math.abs(difference)).toFixed(1) : number(Math.abs(difference));
  return Number(size) !== 0 ? `${difference < 0 ? "−" : "+"}${size}${isShare ? " pp" : ""}` : "";
}

/** A share that is small, such as “only 12.0%”. */
export const only = (share) => (percent(share).startsWith("<") ? `less than ${percent(share).slice(1)}` : `only ${percent(share)}`);

/** Whether a class has less than half of the probability. */
export const isUnsure = (probability) => probability < 0.5;

/** What the model says of a class or a box, of a value of a regression, or of a class of a segmenter. */
export function reading({ probability, value, unit, area }) {
  if (unit !== undefined) return `${number(value)} ${unit}`.trim();
  return area === undefined ? likelihood(probability) : `on ${percent(area)}`;
}

export function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? power(size) : Number(size.toPrecision(3));
  return `${value < 0 ? "−" : ""}${text}`;
}

/** A positive number as a power of ten, such as 1.2·10⁻⁵. */
function power(value) {
  const [factor, exponent] = value.toExponential(1).split("e").map(Number);
  const raised = String(exponent).replace(/./g, (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]);
  return `${factor === 1 ? "" : `${factor}·`}10${raised}`;
}

/** A number of things, such as 1,327. */
export const count = (things) => things.toLocaleString("en");

export function signed(value) {
  const size = Math.abs(value).toFixed(2);
  return `${Number(size) ? (value < 0 ? "−" : "+") : ""}${size}`;
}

/** The progress in an event that has a total, as text. */
export function progress({ done, total, elapsed_ms: elapsed }) {
  const left = done ? (elapsed / done) * (total - done) : 0;
  return `${Math.floor((100 * done) / total)}%${left > 1000 ? `, ${duration(left)} left` : ""}`;
}

export function duration(milliseconds) {
  if (milliseconds < 1000) return `${Math.max(1, Math.round(milliseconds))}\u00a0ms`;
  const seconds = milliseconds / 1000;
  return seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)}\u00a0s` : `${Math.floor(seconds / 60)}\u00a0min ${Math.round(seconds % 60)}\u00a0s`;
}

const NEARLY_ALL = /(99\.9|100\.0)%$/;
const sizeOf = ({ probability, value, area }) => value ?? probability ?? area;

/** Whether the model's reading of a class, a value or a box stays: it is the same text, or nearly all before and after. */
export function isStill(before, after) {
  const [from, to] = [before, after].map(reading);
  return from === to || (NEARLY_ALL.test(from) && NEARLY_ALL.test(to));
}

/** By how much it moves. */
export const rise = (before, after) => sizeOf(after) - sizeOf(before);

/** How the model's reading of a class, a value or a box moves, such as “falls from 39.3% to 18.4%”. */
export function moves(before, after) {
  const isArea = before.area !== undefined;
  const [from, to] = [before, after].map((prediction) => (isArea ? percent(prediction.area) : reading(prediction)));
  const falls = rise(before, after) < 0;
  const moved = isStill(before, after) ? `stays at ${falls ? to : from}` : `${falls ? "falls" : "rises"} from ${from} to ${to}`;
  return isArea ? `${moved} of the picture` : moved;
}

/** How the readings of several move: pairs of predictions before and after. */
export const allMove = (pairs) => pairs.map(([before, after]) => `${before.label} ${moves(before, after)}`).join("; ");

const API_WORDS = [
  [/ \(SEEWHY_\w+\)/g, ""],
  [/ \(`seewhy layers NAME`; in Python, `survey\(\.\.\.\)\.layers`\)/g, ""],
  [/; in Python, `[^`]+` has them/g, ""],
  [/[:;]? \(?(`[^`]+` or )?GET \/\S+ lists [^.)]*\)?/g, ""],
  [/the folder that SEEWHY_WEIGHTS_DIR names/g, "the service’s folder of weights"],
  [/the file that SEEWHY_MODELS names/g, "the service’s models file"],
  [/set SEEWHY_DOWNLOAD=1 on/g, "allow downloads on"],
  [/within SEEWHY_DEADLINE/g, "within the time that the service allows"],
  [/\bSEEWHY_\w+(=\S+)?/g, "a setting of the service"],
  [/\bsign=(\w+)/g, "the option sign: $1"],
  [
    /That is not graded: fewer than (\d+) scores of (contrasts by )?unrelated maps( with proof_fill=mean)? are known(?:, from pictures in which the explained class has at least (\d+%))?(?: \((\d+) so far\))?/,
    (_, most, isContrast, isMean, least, count) => {
      const each = least ? `, each with at least ${least} for the explained class` : "";
      const soFar = count ? ` (it had ${count} when it drew this one)` : "";
      const what = isContrast ? "contrasts" : "pictures";
      return `This heatmap has no grade yet: the service first needs about ${most} ${what} with this model${isMean ? " and the mean colour" : ""}${each}${soFar}`;
    },
  ],
  [/\.\s*\.$/, "."],
];

/** A message of the service without the names of settings and fields, and without the commands and routes that list more. */
export const plain = (message) => API_WORDS.reduce((text, [name, words]) => text.replace(name, words), message);
