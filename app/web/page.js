// The page: sends the chosen picture to /explain and shows the answer in place.

const element = (id) => document.getElementById(id);
const form = element("form");
let picture = null;
let pending = null;

function percent(probability) {
  return `${(probability * 100).toFixed(1)} %`;
}

function showError(message) {
  element("error").textContent = message;
  element("error").hidden = !message;
}

function showAnswer(answer) {
  const [first] = answer.explanations;
  element("overlay").src = first.overlay;
  element("overlay").alt = `Heatmap of ${answer.method.name} for ${first.target.label}`;
  element("caption").textContent =
    `${first.target.label}, ${percent(first.target.probability)} · ${answer.method.name} · ${answer.model.name}`;
  element("predictions").replaceChildren(...answer.predictions.map((prediction) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", String(prediction.index === first.target.index));
    button.style.setProperty("--share", prediction.probability);
    const label = document.createElement("span");
    label.textContent = prediction.label;
    const share = document.createElement("span");
    share.textContent = percent(prediction.probability);
    button.append(label, share);
    button.addEventListener("click", () => {
      element("target").value = prediction.label;
      explain(prediction.index);
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  element("diagnostics").replaceChildren(...first.diagnostics.map((diagnostic) => {
    const item = document.createElement("li");
    item.textContent = diagnostic.message;
    return item;
  }));
  element("download").href = first.overlay;
  element("answer").hidden = false;
}

async function explain(target = element("target").value.trim()) {
  if (!picture) {
    showError("Choose a picture first.");
    return;
  }
  pending?.abort();
  const mine = new AbortController();
  pending = mine;
  const body = new FormData();
  body.append("image", picture);
  body.append("method", element("method").value);
  body.append("alpha", element("alpha").value);
  body.append("format", "json");
  if (target !== "") body.append("target", target);
  form.setAttribute("aria-busy", "true");
  try {
    const response = await fetch("/explain", { method: "POST", body, signal: mine.signal });
    const answer = await response.json();
    if (response.ok) {
      showError("");
      showAnswer(answer);
      await offerLabels(answer.model.name);
    } else {
      showError(answer.detail);
    }
  } catch (error) {
    if (error.name !== "AbortError") showError("The server cannot be reached. Is it still running?");
  } finally {
    if (pending === mine) form.removeAttribute("aria-busy");
  }
}

function choose(file) {
  if (!file) return;
  picture = file;
  element("target").value = "";
  element("answer").hidden = true;
  explain();
}

async function fillControls() {
  const { methods } = await (await fetch("/methods")).json();
  element("method").replaceChildren(...methods.map((method) => {
    const option = new Option(method.name, method.name);
    option.title = method.summary;
    return option;
  }));
}

let labelled = null;

async function offerLabels(model) {
  if (labelled === model) return;
  labelled = model;
  const { labels } = await (await fetch(`/models/${encodeURI(model)}`)).json();
  element("labels").replaceChildren(...labels.map((label) => new Option(label)));
}

element("image").addEventListener("change", (event) => choose(event.target.files[0]));
for (const id of ["method", "target", "alpha"]) {
  element(id).addEventListener("change", () => picture && explain());
}
form.addEventListener("submit", (event) => {
  event.preventDefault();
  explain();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  choose(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => choose(event.clipboardData.files[0]));
fillControls().catch(() => showError("The server cannot be reached. Is it still running?"));
