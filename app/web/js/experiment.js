// What the model says about the marked part, as a section of a report.

import { cover } from "./cover.js";
import { make } from "./dom.js";
import { markAnswered, marked, sentence } from "./marking.js";
import { identity, kind } from "./scene.js";
import { canvas } from "./shrink.js";
import { explained, explanation, state } from "./state.js";
import { reading } from "./words.js";

const SIDE = 800; // pixels of the longer side of the picture in a report
const LISTED = 5; // predictions, besides the explained and the new best one

/** What the model says about the marked part, as a section; null without a part, or if another answer came meanwhile. */
export async function experiment() {
  const { answer } = state;
  await markAnswered();
  const part = marked();
  if (!part || !state.altered || state.answer !== answer) return null;
  const said = `${sentence().replace("your marked part", "the part marked by hand")} The command below repeats the heatmaps without this change.`;
  const table = moves(state.altered);
  const picture = await outlined(part);
  const figure = make("figure", {}, make("img", { src: picture, alt: "The picture that the model was asked about" }));
  const section = make("section", {}, make("h2", { textContent: "A part marked by hand" }), make("p", { textContent: said }));
  section.append(make("div", { class: "grid" }, figure, make("div", {}, table)));
  return section;
}

/** The picture that the model was asked about, with a line around the part, as a data URL. */
async function outlined(part) {
  const { layer, whole } = await cover(state.picture, explanation().heatmap.shape, part);
  const scale = SIDE / Math.max(whole.width, whole.height);
  const [sheet, context] = canvas(whole.width * scale, whole.height * scale);
  context.drawImage(whole, 0, 0, sheet.width, sheet.height);
  for (const [shadowColor, shadowBlur] of [["#fff", 8], ["#000", 3]]) {
    Object.assign(context, { shadowColor, shadowBlur });
    for (let time = 0; time < 3; time += 1) context.drawImage(layer, 0, 0, sheet.width, sheet.height);
  }
  return sheet.toDataURL("image/jpeg", 0.9);
}

/** A table of the predictions before and after. */
function moves({ before, after }) {
  const names = [...[...before.keys()].slice(0, LISTED), identity(explained()), ...(kind() ? [] : [after.keys().next().value])];
  const rows = [...new Set(names)].filter((name) => before.has(name)).map((name) => {
    const [from, to] = [before, after].map((predictions) => predictions.get(name));
    const now = to?.isGone ? "no longer found" : to ? reading(to) : "no longer listed";
    return [from.label, reading(from), now];
  });
  const header = make("tr", {}, make("td"), ...["Before", "After"].map((text) => make("th", { scope: "col", textContent: text })));
  const body = rows.map(([label, ...texts]) =>
    make("tr", {}, make("th", { scope: "row", textContent: label }), ...texts.map((text) => make("td", { textContent: text }))),
  );
  return make("table", {}, header, ...body);
}
