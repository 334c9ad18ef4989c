// The strip of all pictures: small copies with class, probability and trust; filters; the arrow keys open them.

import { byId, make } from "./dom.js";
import { again, allPictures, bound, clear, current, gradedSubjects, isOtherFill, isOutdated, isWaiting, mayPass, onPictures, openPicture } from "./gallery.js";
import { GRADES, gradeOf, isInconclusive, isUngraded, signBadge } from "./proof.js";

const FILTERS = {
  all: () => true,
  wrong: (picture) => picture.result?.isWrong && !isOutdated(picture),
  unsure: (picture) => picture.result?.isUnsure && !isOutdated(picture),
  untested: (picture) => isInconclusive(picture.result?.proof) && !isOutdated(picture),
};

/** What a filter lists, for the head of the model. */
function listing(name) {
  const head = allPictures().find((picture) => picture.result && !isOutdated(picture))?.result.head;
  if (name === "unsure") {
    const isRanked = head !== "sigmoid" && head !== "value";
    return `Doubtful: the heatmap is not supported or blank${isRanked ? ", or the best class has less than 50%" : ""}.`;
  }
  if (name === "untested") return "Inconclusive: hiding changed too little to test the heatmap.";
  if (name !== "wrong") return "";
  return `Wrong: ${head === "sigmoid" ? "the true class, by the folder or file name, has less than 50%" : "the folder or file name gives another class"}.`;
}

const items = new Map(); // of pictures, their elements

const filter = () => document.querySelector("[name=filter]:checked").value;
const isListed = (picture) => Boolean(FILTERS[filter()](picture));
const listed = () => allPictures().filter(isListed);

export function prepareStrip() {
  onPictures(show);
  byId("thumbnails").addEventListener("keydown", steer);
  for (const control of document.querySelectorAll("[name=filter]")) control.addEventListener("change", openListed);
  document.querySelector("#strip .switch").addEventListener("click", ({ target }) => {
    // After a click, the arrow keys open pictures; with the keyboard, they choose another filter.
    if (!target.matches("input")) setTimeout(() => items.get(reachable())?.focus({ preventScroll: true }));
  });
  byId("strip-clear").addEventListener("click", () => {
    clear();
    byId("main").focus(); // this button disappears
  });
  const strip = byId("thumbnails");
  for (const [name, way] of Object.entries({ left: -1, right: 1 })) {
    byId(`strip-${name}`).addEventListener("click", () => strip.scrollBy(0.8 * way * strip.clientWidth, 0));
  }
  strip.addEventListener("scroll", showEnds);
  new ResizeObserver(showEnds).observe(strip);
  byId("strip-again").addEventListener("click", () => again(toAsk()));
}

/** Shows the pictures that the filter lists, and opens the first unless one of them is open. */
function openListed() {
  show(null);
  const pictures = listed();
  if (pictures.length && !pictures.includes(current())) openPicture(pictures[0]);
}

/** The pictures whose explanation failed but may not fail again, has other settings, or was proved with another fill or before the service could grade it. */
function toAsk() {
  const graded = gradedSubjects();
  const isOld = ({ proof, subject }) => proof?.grade === null && graded.has(subject);
  const must = (picture) => (picture.result ? isOutdated(picture) || isOld(picture.result) || isOtherFill(picture.result) : picture.failure && mayPass(picture));
  return allPictures().filter((picture) => (picture === current() ? picture.result && isOld(picture.result) : must(picture)));
}

/** Shows all pictures, or what has changed about one. */
function show(changed) {
  const pictures = allPictures();
  const isHidden = pictures.length < 2;
  byId("strip").hidden = isHidden;
  document.body.classList.toggle("many", !isHidden);
  document.body.classList.toggle("own", pictures.some(({ example }) => !example));
  if (changed) describe(changed);
  else list(pictures);
  count(pictures);
}

function list(pictures) {
  for (const [picture, item] of items) {
    if (pictures.includes(picture)) continue;
    item.remove();
    items.delete(picture);
  }
  for (const picture of pictures) {
    if (!items.has(picture)) byId("thumbnails").append(create(picture));
    describe(picture);
  }
  const shown = items.get(current());
  if (shown) reveal(shown);
}

function create(picture) {
  const item = make("li", { role: "option", on: { click: () => choose(picture) } });
  items.set(picture, item);
  return item;
}

function choose(picture) {
  items.get(picture).focus();
  openPicture(picture);
}

/** Opens the picture beside the one that has the focus. */
function steer(event) {
  const pictures = listed();
  const place = pictures.findIndex((picture) => items.get(picture) === document.activeElement);
  const last = pictures.length - 1;
  const to = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last, Enter: place, " ": place }[event.key];
  if (to === undefined || place < 0) return;
  event.preventDefault();
  if (to >= 0 && to <= last) choose(pictures[to]);
}

/** Offers to scroll to the side where there are more pictures. */
function showEnds() {
  const { scrollLeft, scrollWidth, clientWidth } = byId("thumbnails");
  byId("strip-left").hidden = scrollLeft < 1;
  byId("strip-right").hidden = scrollLeft + clientWidth > scrollWidth - 1;
}

/** Scrolls the strip, but not the page. */
function reveal(item) {
  const strip = byId("thumbnails");
  const [left, right] = [item.offsetLeft - strip.offsetLeft, item.offsetLeft - strip.offsetLeft + item.offsetWidth];
  if (left < strip.scrollLeft) strip.scrollLeft = left;
  else if (right > strip.scrollLeft + strip.clientWidth) strip.scrollLeft = right - strip.clientWidth;
}

function describe(picture) {
  const item = items.get(picture);
  if (!item) return;
  const { path, thumbnail, result, failure } = picture;
  const name = path.split("/").at(-1);
  const isShown = picture === current();
  item.hidden = !isListed(picture);
  item.title = [path, result?.truth ? `True class, by its folder or file name: ${result.truth}.` : "", result ? "" : failure?.message].filter(Boolean).join("\n");
  item.setAttribute("aria-selected", String(isShown));
  item.setAttribute("aria-label", [name, ...facts(picture)].join(", "));
  item.classList.toggle("wrong", Boolean(result?.isWrong));
  item.classList.toggle("outdated", isOutdated(picture));
  const view = thumbnail ? make("img", { src: thumbnail, alt: "" }) : make("span", { class: "name", textContent: name });
  const label = make("span", { class: "label", textContent: result?.label ?? "…" });
  const truth = result?.truth ? make("span", { class: "truth", textContent: judged(result) }) : null;
  const line = make("span", { class: "line" }, result && make("span", { class: "share", textContent: result.reading }), truth);
  item.replaceChildren(
    make("span", { class: "view" }, view, result?.proof ? gradeSign(result.proof) : null),
    ...(failure && !result ? [make("span", { class: "fault", textContent: failure.message })] : [label, line]),
  );
}

/** Whether the answer is right, in words: signs grade the heatmap. */
function judged({ label, truth, isWrong }) {
  if (isWrong) return `is: ${truth}`;
  return truth === label ? "right" : `right: ${truth}`; // several classes may hold at once
}

/** The sign of a heatmap's grade, which does not judge the class. */
function gradeSign(proof) {
  const sign = signBadge(proof);
  sign.title = `Heatmap: ${gradeOf(proof)}`;
  return sign;
}

/** What the signs mean that the pictures show. */
function showLegend(pictures) {
  const proofs = new Map(pictures.filter(({ result }) => result?.proof).map(({ result: { proof } }) => [gradeOf(proof), proof]));
  byId("strip-legend").hidden = !proofs.size || filter() !== "all"; // the note about a filter takes its place
  const grades = GRADES.filter((grade) => proofs.has(grade));
  byId("strip-legend").replaceChildren("Heatmaps: ", ...grades.map((grade) => make("span", {}, signBadge(proofs.get(grade)), ` ${grade}`)));
}

/** The folder and the name of the open picture: of a long path, the end stays in sight. */
function showPath() {
  const path = current()?.path ?? "";
  const start = path.lastIndexOf("/") + 1;
  byId("strip-path").title = path;
  byId("strip-path").replaceChildren(make("span", { textContent: path.slice(0, start) }), make("span", { textContent: path.slice(start) }));
}

/** What is known about a picture, for screen readers. */
function facts(picture) {
  const { result, failure } = picture;
  if (!result) return [failure?.message ?? "not explained yet"];
  const { label, reading, proof, truth, isWrong } = result;
  return [
    `${label} ${reading}`,
    ...(proof ? [gradeOf(proof)] : []),
    ...(truth ? [isWrong ? `wrong, it is ${truth}` : "right"] : []),
    ...(isOutdated(picture) ? ["with other settings"] : []),
  ];
}

function count(pictures) {
  for (const [name, fits] of Object.entries(FILTERS)) byId(`count-${name}`).textContent = pictures.filter(fits).length;
  const hasTruth = pictures.some(({ result }) => result?.truth);
  const isAnyWaiting = pictures.some(isWaiting);
  if (!hasTruth) byId("count-wrong").textContent = "";
  document.querySelector("[name=filter][value=wrong]").disabled = !hasTruth;
  for (const name of ["unsure", "untested"]) byId(`filter-${name}`).title = listing(name);
  byId("filter-untested").hidden = filter() !== "untested" && !pictures.some(FILTERS.untested);
  byId("filter-wrong").title = hasTruth || isAnyWaiting ? listing("wrong") : "No folder or file name gives the true class.";
  const done = pictures.filter(({ result }) => result).length;
  const failures = pictures.filter(({ result, failure }) => !result && failure).map(({ failure }) => failure);
  const unreadable = failures.filter(({ isOfPicture }) => isOfPicture).length;
  const failed = failures.length - unreadable;
  const old = toAsk();
  byId("strip-progress").textContent = isAnyWaiting ? `${done} of ${pictures.length}` : "";
  byId("strip-failed").textContent = [failed && `${failed} failed`, unreadable && `${unreadable} cannot be read`].filter(Boolean).join(", ");
  byId("strip-again").hidden = !old.length;
  byId("strip-again").textContent = `Explain ${old.length} again`;
  byId("strip-again").title = "Their explanations failed, come from other settings, or can be graded now.";
  const late = filter() === "all" ? 0 : pictures.filter(isOutdated).length;
  const leftOut = late ? `${late} ${late === 1 ? "answer with other settings is" : "answers with other settings are"} left out.` : "";
  const isAnyUngraded = pictures.some(({ result }) => isUngraded(result?.proof));
  const ungraded = filter() === "unsure" && isAnyUngraded ? "Heatmaps that are not graded do not count." : "";
  const note = [bound(), listing(filter()), ungraded, leftOut, listed().length ? "" : "No picture matches this filter."].filter(Boolean).join(" ");
  byId("strip-note").textContent = note;
  byId("strip-note").hidden = !note;
  showPath();
  showLegend(pictures);
  showEnds();
  const reached = reachable();
  for (const [picture, item] of items) item.tabIndex = picture === reached ? 0 : -1;
}

/** The listed picture that the tabulator reaches; undefined if none is listed. */
function reachable() {
  const pictures = listed();
  return pictures.includes(current()) ? current() : pictures[0];
}
