// Copies commands and code that request what the page shows, and downloads its files.

import { link } from "./address.js";
import { post } from "./api.js";
import { announce, byId, make } from "./dom.js";
import { experiment } from "./experiment.js";
import { examplePath } from "./picture.js";
import { showProblem } from "./problems.js";
import { drawingQuestion, withModel } from "./question.js";
import { overlay } from "./stage.js";
import { state } from "./state.js";

const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A form field for curl, in which some characters have a special meaning. */
function formField([name, value]) {
  return /^[@<]|[;"]/.test(value) ? `--form-string ${quoted(`${name}=${value}`)}` : `-F ${quoted(`${name}=${value}`)}`;
}

/** A picture's file as a form field for curl. */
function fileField(field, { name }) {
  const file = /[;,"\\]/.test(name) ? `"${name.replaceAll(/["\\]/g, "\\$&")}"` : name;
  return `-F ${quoted(`${field}=@${file}`)}`;
}

/** The curl command for a route of the service. */
export function curl(path, fields, output) {
  const address = `${location.origin}${path}`;
  const lines = withModel(fields).map(formField);
  if (state.example) {
    const source = `curl -sS ${location.origin}${examplePath(state.example)}`;
    lines.unshift("-F image=@-");
    return `${source} |\n  curl -sS ${[...lines, address, `-o ${output}`].join(" \\\n    ")}`;
  }
  lines.unshift(fileField("image", state.picture.file));
  return `curl -sS ${[...lines, address, `-o ${output}`].join(" \\\n  ")}`;
}

/** The curl command for a route of two pictures; those that are examples are downloaded first. */
export function curlOfTwo(path, fields, output) {
  const examples = [...new Set([state.example, state.reference].filter(Boolean))].map((name) => `-O ${location.origin}${examplePath(name)}`);
  const download = examples.length ? `curl -sS ${examples.join(" ")} &&\n  ` : "";
  const files = [fileField("image", state.picture.file), fileField("reference", state.second.file)];
  return `${download}curl -sS ${[...files, ...withModel(fields).map(formField), `${location.origin}${path}`, `-o ${output}`].join(" \\\n    ")}`;
}

/** Python that does the same with the requests library. */
function python(path, fields, output) {
  const text = JSON.stringify;
  const data = {};
  for (const [name, value] of withModel(fields)) (data[name] ??= []).push(value);
  const rows = Object.entries(data).map(
    ([name, values]) => `        ${text(name)}: ${values.length > 1 ? `[${values.map((value) => text(value)).join(", ")}]` : text(values[0])},`,
  );
  const picture = state.example
    ? `picture = requests.get(${text(`${location.origin}${examplePath(state.example)}`)}).content`
    : `picture = Path(${text(state.picture.file.name)}).read_bytes()`;
  return [
    "# pip install requests",
    "from pathlib import Path",
    "",
    "import requests",
    "",
    picture,
    "answer = requests.post(",
    `    ${text(`${location.origin}${path}`)},`,
    '    files={"image": picture},',
    "    data={",
    ...rows,
    "    },",
    ")",
    "answer.raise_for_status()",
    `Path(${text(output)}).write_bytes(answer.content)`,
    "",
  ].join("\n");
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https, pages of other machines may not use that clipboard API.
    const area = make("textarea", { value: text, class: "visually-hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  tell(button);
}

/** The button says for a moment that it has copied. */
function tell(button) {
  const usual = (button.dataset.said ??= button.textContent);
  button.textContent = "Copied";
  announce("Copied.");
  setTimeout(() => (button.textContent = usual), 1500);
}

/** Copies the picture that is shown; where the browser cannot, the button says what to do instead. */
async function copyPicture(button) {
  button.dataset.said ??= button.textContent;
  try {
    // Some browsers accept only a promise here, because the picture is drawn after the click.
    await navigator.clipboard.write([new ClipboardItem({ "image/png": overlay.blob() })]);
    tell(button);
  } catch {
    button.textContent = "Not possible here: download the PNG";
    announce("This browser does not let the page copy pictures. Download the PNG instead.");
  }
}

/** Downloads what the service answers to the question of the map that is shown, with further fields. */
async function download(fields, ending, button, finish = (answer) => answer.blob()) {
  button.setAttribute("aria-busy", "true");
  const name = `${stem()}.${ending}`; // by the time of the answer, another picture may be open
  try {
    const answer = await post("/explain", state.picture.file, [...state.asked, ...fields]);
    save(await finish(answer), name);
  } catch (error) {
    showProblem(error);
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function saveReport(button) {
  const section = experiment();
  const complete = async (answer) => {
    const [report, added] = [await answer.text(), await section];
    const whole = added ? report.replace("<section>", (next) => `${added.outerHTML}\n\n${next}`) : report; // after the heatmaps
    return new Blob([whole], { type: "text/html" });
  };
  return download([["alpha", String(state.alpha)], ["proof", "true"], ["format", "report"]], "html", button, complete);
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const stem = () => `${state.picture.file.name.replace(/\.[^.]*$/, "") || "picture"}-${state.answer.method.name}`;

export function prepareCopy() {
  const on = (id, action) => byId(id).addEventListener("click", (event) => state.answer && action(event.currentTarget));
  on("copy-curl", (button) => copy(curl("/explain", drawingQuestion(), "heatmap.png"), button));
  on("copy-python", (button) => copy(python("/explain", drawingQuestion(), "heatmap.png"), button));
  on("copy-link", (button) => copy(link(), button));
  on("save-png", async () => save(await overlay.blob(), `${stem()}.png`));
  on("save-json", () => save(new Blob([JSON.stringify(state.answer, null, 1)], { type: "application/json" }), `${stem()}.json`));
  on("save-npz", (button) => download([["format", "npz"]], "npz", button));
  on("save-report", saveReport);
  on("copy-picture", copyPicture);
}
