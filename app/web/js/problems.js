// What is wrong, in words, beside the control at fault; what has no control is said at the top.

import { announce, byId, make } from "./dom.js";

const OTHER_NAMES = { layers: "layer", colors: "colormap", edits: "channels" };

/** Shows a problem. `scope` is the part of the page whose controls it may be about. */
export function showProblem(problem, scope = document) {
  const left = [];
  const found = problem.errors?.length ? problem.errors : [{ field: "", message: problem.message }];
  for (const { field, message } of found) {
    const name = field.split(/[.[]/)[0];
    const box = scope.querySelector(`[data-field="${CSS.escape(OTHER_NAMES[name] ?? name)}"]`);
    if (box) showBeside(box, message);
    else left.push(name && !message.includes(name) ? `${name}: ${message}` : message);
  }
  byId("problem").hidden = !left.length;
  byId("problem-text").textContent = left.join(" ");
  announce(found.map((one) => one.message).join(" "));
}

function showBeside(box, message) {
  const fault = box.querySelector(".fault");
  fault.textContent = message;
  fault.hidden = false;
  box.classList.add("faulty");
  for (const control of box.querySelectorAll("input, select, button")) {
    if (control.getAttribute("aria-describedby")?.includes(fault.id)) control.setAttribute("aria-invalid", "true");
  }
  for (let around = box.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
}

export function clearProblems(scope = document) {
  byId("problem").hidden = true;
  for (const box of scope.querySelectorAll(".faulty")) {
    box.classList.remove("faulty");
    box.querySelector(".fault").hidden = true;
    for (const control of box.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  }
}

/** A problem shown where an answer would have been. */
export function problemBox(problem) {
  return make("p", { class: "fault-box", role: "alert", textContent: problem.message });
}
