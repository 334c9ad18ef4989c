// Error messages beside the control at fault; those without a control, or in a view that is not open, are shown above the page.

import { announce, byId, make, prose } from "./dom.js";
import { onChange } from "./state.js";

let lasting = []; // what the link names that does not exist: each stays until it is dismissed or its setting changes

export function prepareProblems(errors) {
  lasting = errors;
  onChange((patch) => {
    const left = lasting.filter(({ setting }) => !(setting in patch));
    if (left.length === lasting.length) return;
    lasting = left;
    clearProblems();
  });
  byId("dismiss").addEventListener("click", () => {
    lasting = [];
    clearProblems();
    byId("main").focus(); // this button disappears
  });
}

/**
 * Shows a problem, if there is another one than those of the link. `again()` retries, as `offer` says; it is offered unless
 * the request itself is at fault.
 */
export function showProblem(problem = null, again = null, offer = "Try again") {
  if (problem && document.fullscreenElement) document.exitFullscreen(); // messages may stand outside of it
  const faulty = problem?.errors?.length > 0;
  const faults = faulty ? problem.errors : problem ? [{ field: "", message: problem.message }] : [];
  place([...lasting, ...faults]);
  byId("retry").hidden = !again || faulty || problem.mayPass === false;
  byId("retry").textContent = offer;
  byId("retry").onclick = again;
  announce([...lasting, ...faults].map((fault) => fault.message).join(" "));
  document.querySelector("#problem:not([hidden]), .faulty .fault").scrollIntoView({ block: "nearest" });
}

function place(faults) {
  const left = [];
  for (const { field, message } of faults) {
    const name = field.split(/[.[]/)[0];
    const box = document.querySelector(`[data-field="${CSS.escape(name)}"]`);
    if (box && !box.closest("#work[hidden], [role=tabpanel][hidden]")) showBeside(box, message);
    else left.push(name && !message.includes(name) ? `${name}: ${message}` : message);
  }
  byId("problem").hidden = !left.length;
  byId("problem-text").textContent = left.join(" ");
}

function showBeside(box, message) {
  const fault = box.querySelector(".fault");
  fault.replaceChildren(...prose(message));
  fault.hidden = false;
  box.classList.add("faulty");
  for (const control of box.querySelectorAll("input, select, button")) {
    if (control.getAttribute("aria-describedby")?.includes(fault.id)) control.setAttribute("aria-invalid", "true");
  }
  for (let around = box.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
}

export function clearProblems() {
  byId("problem").hidden = true;
  for (const box of document.querySelectorAll(".faulty")) {
    box.classList.remove("faulty");
    box.querySelector(".fault").hidden = true;
    for (const control of box.querySelectorAll("[aria-invalid]")) control.removeAttribute("aria-invalid");
  }
  byId("retry").hidden = true;
  place(lasting);
}

/** A problem in place of an answer. */
export function problemBox(problem) {
  return make("p", { class: "fault-box", role: "alert", textContent: problem.message });
}
