// Elements of the page: finding and making them.

export const byId = (id) => document.getElementById(id);

/** Makes an element. `on` holds listeners, `class` is a class name, other names are properties or else attributes. */
export function make(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  const { on = {}, class: name, ...rest } = given;
  if (name) made.className = name;
  for (const [key, value] of Object.entries(rest)) {
    if (key in made) made[key] = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Turns text with `code` in backticks into nodes. */
export function prose(text) {
  return text.split("`").map((part, place) => (place % 2 ? make("code", { textContent: part }) : part));
}

let numbered = 0;

/** A label, its control, what helps to fill it in, and room for what is wrong with it: see problems.js. */
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

/** Whether fingers point rather than a mouse; narrow screens count as such. The style sheet asks the same. */
export const isTouched = () => matchMedia("(hover: none), (max-width: 40rem)").matches;

/** Marks what is wider than its place, for which a hint stands before it. */
export function prepareScrolls() {
  const watch = new ResizeObserver(() => {
    for (const one of document.querySelectorAll(".scroll")) one.classList.toggle("wide", one.scrollWidth > one.clientWidth);
  });
  for (const one of document.querySelectorAll(".scroll")) watch.observe(one);
}

/** Says something to those who do not see the page. */
export function announce(text) {
  byId("status").textContent = text;
}
