// Error messages beside the control at fault; those without a control, or in a view that is not open, are at the top.

import { announce, byId, make, prose } from "./dom.js";

/** Shows a problem. `again()` retries, as `offer` says; it is offered unless the request itself is at fault. */
export function showProblem(problem, again = null, offer = "Try again") {
  const left = [];
  const faulty = problem.errors?.length > 0;
  const faults = faulty ? problem.errors : [{ field: "", message: problem.message }];
  for (const { field, message } of faults) {
    const name = field.split(/[.[]/)[0];
    const box = document.querySelector(`[data-field="${CSS.escape(name)}"]`);
    if (box && !box.closest("#work[hidden], [role=tabpanel][hidden]")) showBeside(box, message);
    else left.push(name && !message.includes(name) ? `${name}: ${message}` : message);
  }
  byId("problem").hidden = !left.length;
  byId("problem-text").textContent = left.join(" ");
  const { mayPass = true } = problem;
  byId("retry").hidden = !again || faulty || !mayPass;
  byId("retry").textContent = offer;
  byId("retry").onclick = again;
  announce(faults.map((fault) => fault.message).join(" "));
  document.querySelector("#problem:not([hidden]), .faulty .fault").scrollIntoView({ block: "nearest" });
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
}

/** A problem in place of an answer. */
export function problemBox(problem) {
  return make("p", { class: "fault-box", role: "alert", textContent: problem.message });
}
