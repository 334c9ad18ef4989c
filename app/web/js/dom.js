// Helpers for elements of the page.

export const byId = (id) => document.getElementById(id);

/** Creates an element. `on` has listeners, `class` is a class name, other names are properties or attributes. */
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  if (tag === "button") element.type = "button"; // which submits no form
  const { on = {}, class: name, ...rest } = given;
  if (name) element.className = name;
  for (const [key, value] of Object.entries(rest)) {
    if (key in element) element[key] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SHAPES = "http://www.w3.org/2000/svg";

/** Creates an element of SVG. */
export function makeShape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SHAPES, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Turns text with `code` in backticks into nodes. */
export function prose(text) {
  return text.split("`").map((part, place) => (place % 2 ? make("code", { textContent: part }) : part));
}

/** Turns a name into nodes between which a line may end, such as “solder_” and “bridge”. */
export const breakable = (name) => name.split(/(?<=[_./-])(?=.)/).flatMap((part, place) => (place ? [make("wbr"), part] : [part]));

let numbered = 0;

/** A label, its control, its help, and a place for its error: see problems.js. */
export function field(name, label, control, help = []) {
  numbered += 1;
  const id = `control-${numbered}`;
  const fault = make("p", { class: "fault", id: `${id}-fault`, hidden: true });
  const said = help.length ? make("p", { class: "help", id: `${id}-help` }, ...help) : null;
  control.id = id;
  control.setAttribute("aria-describedby", said ? `${id}-help ${id}-fault` : `${id}-fault`);
  const box = make("div", { class: "field" }, make("label", { htmlFor: id, textContent: label }), control, said, fault);
  box.dataset.field = name;
  return box;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Where an arrow key leads, right and down; undefined for other keys. */
export const arrow = ({ key }) => ARROWS[key];

/** Whether the device has a touch screen or a narrow one. The style sheet uses the same query. */
export const isTouched = () => matchMedia("(hover: none), (max-width: 40rem)").matches;

/** How people are asked to choose a place. */
export const pointAt = () => (isTouched() ? "Touch" : "Point at");

/** Marks elements that are wider than their place, so that a hint is shown. */
export function prepareScrolls() {
  const watch = new ResizeObserver(() => {
    for (const element of document.querySelectorAll(".scroll")) element.classList.toggle("wide", element.scrollWidth > element.clientWidth);
  });
  for (const element of document.querySelectorAll(".scroll")) watch.observe(element);
}

/** Scrolls an element into sight, gently where motion is welcome. */
export function scrollTo(element, block = "nearest") {
  element.scrollIntoView({ block, behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

/** Announces a text to screen readers. */
export function announce(text) {
  byId("status").textContent = text;
}
