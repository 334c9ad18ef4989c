// Formatting of numbers and times.

export function percent(probability) {
  if (probability > 0 && probability < 0.001) return "<0.1%";
  return `${(probability * 100).toFixed(1)}%`;
}

/** Whether a class has less than half of the probability. */
export const isUnsure = (probability) => probability < 0.5;

/** What the model says of a class or a box, of a value of a regression, or of a class of a segmenter. */
export function reading({ probability, value, unit, area }) {
  if (unit !== undefined) return `${number(value)} ${unit}`.trim();
  return area === undefined ? percent(probability) : `on ${percent(area)}`;
}

export function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export function signed(value, digits = 2) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** The progress in an event that has a total, as text. */
export function progress({ done, total, elapsed_ms: elapsed }) {
  const left = done ? (elapsed / done) * (total - done) : 0;
  return `${Math.floor((100 * done) / total)}%${left > 1000 ? `, ${duration(left)} left` : ""}`;
}

export function duration(milliseconds) {
  if (milliseconds < 1000) return `${Math.max(1, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1000;
  return seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** An error of the service without the names of settings, and without the commands and routes that list more. */
export function plain(message) {
  const short = message.replace(/ \(SEEWHY_\w+\)/g, "").replace(/[:;]? \(?(`[^`]+` or )?GET \/\S+ lists [^.)]*\)?/g, "");
  return short.replace(/\.\s*\.$/, ".");
}
