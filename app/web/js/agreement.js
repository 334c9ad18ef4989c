// The agreement of the maps of a grid: the rank correlation of each pair, as a table.

import { byId, make } from "./dom.js";
import { areSame, rankCorrelation } from "./maps.js";

const known = new Map(); // by the requests of a pair

function agreement(first, second) {
  const key = `${first.key}${second.key}`;
  if (!known.has(key)) known.set(key, rankCorrelation(first.card.heatmap, second.card.heatmap));
  return known.get(key);
}

/** Shows the agreement of the maps that have arrived, of cards by their requests. */
export function showAgreement(cards) {
  const done = [...cards].filter(([, card]) => card.heatmap).map(([key, card]) => ({ key, card }));
  byId("agreement").hidden = done.length < 2;
  if (done.length < 2) return;
  const head = make("tr", {}, make("td"), ...done.map(({ card }) => make("th", { scope: "col", textContent: card.name })));
  const rows = done.map((first) =>
    make("tr", {}, make("th", { scope: "row", textContent: first.card.name }), ...done.map((second) => cell(first, second))),
  );
  byId("agreement-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  const same = sameMaps(done.map(({ card }) => card));
  byId("agreement-same").hidden = !same.length;
  byId("agreement-same").textContent = same.map((names) => `${names.slice(0, -1).join(", ")} and ${names.at(-1)} have the same map.`).join(" ");
}

/** The names of cards whose maps are the same, by groups. */
function sameMaps(cards) {
  const groups = [];
  for (const card of cards) {
    const group = groups.find(([first]) => areSame(first.heatmap, card.heatmap));
    if (group) group.push(card);
    else groups.push([card]);
  }
  return groups.filter(({ length }) => length > 1).map((group) => group.map(({ name }) => name));
}

function cell(first, second) {
  if (first === second) return make("td", { class: "same", textContent: "–" });
  const value = agreement(...[first, second].sort((left, right) => (left.key < right.key ? -1 : 1)));
  const element = make("td", { textContent: value === null ? "n/a" : value.toFixed(2).replace(/^-(?=.*[1-9])/, "−").replace("-", "") });
  element.style.setProperty("--strength", `${Math.round(Math.max(0, value ?? 0) * 45)}%`);
  return element;
}
