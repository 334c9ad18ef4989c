// Requests to the service, and its errors.

import { keyedFetch } from "./key.js";
import { plain } from "./words.js";

const UNREACHABLE = "The server cannot be reached. Is it still running?";

/** An error answer: a message, and errors per field; those about the picture name its file. */
export class Problem extends Error {
  constructor({ detail, type = "", errors = [], status = 0 }, file = "", wait = null) {
    const prefix = file && errors.some(({ field }) => field === "image") ? `${file}: ` : "";
    const said = (text) => prefix + plain(wait ? text.replace("after the seconds in Retry-After", `in ${wait} s`) : text);
    super(said(detail));
    this.name = "Problem";
    this.errors = errors.map(({ field, message }) => ({ field, message: said(message) }));
    this.status = status;
    this.wait = status === 429 && wait; // seconds until the service takes further requests
    this.isOfPicture = [413, 415].includes(status) || errors.some(({ field }) => field === "image");
    this.mayPass = status < 400 || status >= 500 || [401, 429].includes(status); // the same question may be answered later
    this.isTooMuch = type.endsWith(":too-much-work"); // it cannot finish in time
  }
}

function unreachable(error) {
  throw error.name === "AbortError" ? error : new Problem({ detail: UNREACHABLE });
}

async function send(path, given, file) {
  const response = await keyedFetch(path, given).catch(unreachable);
  if (response.ok) return response;
  if (response.headers.get("Content-Type")?.includes("json")) {
    throw new Problem(await response.json(), file, Number(response.headers.get("Retry-After")));
  }
  throw new Problem({ detail: `The server responded with ${`${response.status} ${response.statusText}`.trim()}.`, status: response.status });
}

export const get = (path) => send(path, {});

const kept = new Map();

/** The answer of a route of the catalogue, requested once, or anew because it has changed. */
export function catalogue(path, { anew = false } = {}) {
  if (anew || !kept.has(path)) {
    const asked = get(path).then((response) => response.json());
    kept.set(path, asked);
    asked.catch(() => kept.delete(path));
  }
  return kept.get(path);
}

export const modelPath = (name) => `/models/${name.split("/").map(encodeURIComponent).join("/")}`;

/** Requests of one kind that run at a time. */
export const AT_ONCE = 2;

/** Posts a picture. `fields` are pairs of names and values, also files; a repeated name is a list. */
export function post(path, picture, fields, { signal, accept } = {}) {
  const body = new FormData();
  body.append("image", picture, picture.name || "picture");
  for (const [name, value] of fields) body.append(name, value);
  return send(path, { method: "POST", body, signal, headers: accept ? { Accept: accept } : {} }, picture.name);
}

/** Asks /explain for a JSON document; while it works, `onProgress({done, total, elapsed_ms, preview})` is called. */
export async function explain(picture, fields, { signal, onProgress = () => {} } = {}) {
  // The service streams events if it can, otherwise it sends only the document.
  const accept = "text/event-stream, application/json;q=0.9";
  const response = await post("/explain", picture, fields, { signal, accept });
  if (!response.headers.get("Content-Type").startsWith("text/event-stream")) return response.json();
  for await (const { event, data } of events(response.body)) {
    if (event === "progress") onProgress(data);
    else if (event === "answer") return data;
    else if (event === "error") throw new Problem(data);
  }
  throw new Problem({ detail: "The server closed the connection before the result was ready. Try again." });
}

/** Parses server-sent events, whose data are JSON. */
async function* events(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(unreachable);
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const message = { event: "message", data: "" };
        for (const line of part.split(/\r?\n/)) {
          const [, name, text] = line.match(/^(\w+): ?(.*)$/s) ?? [];
          if (name === "event") message.event = text;
          if (name === "data") message.data += text;
        }
        if (message.data) yield { event: message.event, data: JSON.parse(message.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
