/**
 * Requests to the server of the studio.
 *
 *     const runs = await getJson("/api/runs", { signal });
 *     const tokens = await postJson("/api/tokenizer/encode", { text }, { signal });
 *     await streamEvents("/api/runs/events", { signal, onEvent: (name, data) => … });
 *
 * A failed request throws an `ApiError`, whose message can be shown to the user. An aborted one throws an
 * error whose name is "AbortError"; `isAbort(error)` tests for it. If the server needs a key, the page asks for it.
 */
import { field, h } from "./dom.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** Return whether an error means that the user left the view. */
export function isAbort(error) {
  return error?.name === "AbortError";
}

/** Return the JSON of a GET request. */
export async function getJson(path, { signal } = {}) {
  return (await request(path, { signal })).json();
}

/** Return the JSON of a POST request with a JSON body. */
export async function postJson(path, body, { signal } = {}) {
  return (await request(path, { signal, ...withBody(body) })).json();
}

/**
 * Call onEvent(name, data) for each server-sent event until the stream ends or `signal` aborts. With `body`
 * the request is a POST. With `reconnect`, a lost connection is opened again, and onState("lost" | "open") is
 * called. An event named "error" throws its message.
 */
export async function streamEvents(path, { signal, body, onEvent, onState = () => {}, reconnect = false }) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const response = await request(path, { signal, ...(body === undefined ? {} : withBody(body)) });
      onState("open");
      wait = 500;
      await readEvents(response.body, onEvent);
      if (!reconnect) return;
    } catch (error) {
      if (signal?.aborted || isAbort(error)) return;
      if (!reconnect || (error instanceof ApiError && error.status < 500)) throw error;
    }
    if (signal?.aborted) return;
    onState("lost");
    await new Promise((resume) => setTimeout(resume, wait));
  }
}

async function readEvents(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw isAbort(error) ? error : new ApiError("The connection to the server is lost.", 503);
    });
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      let name = "message";
      let data = "";
      for (const line of event.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (!data) continue;
      if (name === "error") throw new ApiError(JSON.parse(data).message, 400);
      onEvent(name, JSON.parse(data));
    }
  }
}

function withBody(body) {
  // A text can end with half a character, which is not valid Unicode.
  const content = JSON.stringify(body, (key, value) => (typeof value === "string" ? value.toWellFormed() : value));
  return { method: "POST", body: content, headers: { "content-type": "application/json" } };
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (isAbort(error) || options.signal?.aborted) throw new DOMException("left the view", "AbortError");
    throw new ApiError("The server does not answer. Is `bytewright studio` still running?", 503);
  }
  if (response.ok) return response;
  if (response.status === 401) {
    await askForKey();
    return request(path, options);
  }
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The body is not JSON of the studio: show the status instead.
  }
  throw new ApiError(message, response.status);
}

let asking = null;

/** Ask for the API key until the server accepts it; the server then sets a cookie. */
function askForKey() {
  asking ??= new Promise((done) => {
    // Without `autofocus` the focus would be in the first field, the invisible user name.
    const input = h("input", { type: "password", autocomplete: "current-password", required: true, autofocus: true });
    const problem = h("p", { class: "error", role: "alert" });
    // A user name, because password managers require one.
    const user = h("input", { class: "hidden", autocomplete: "username", value: "studio", tabindex: -1, "aria-hidden": "true" });
    const form = h(
      "form",
      {},
      user,
      h("h2", {}, "This studio needs a key"),
      field("API key", input, "The key that `bytewright studio` was started with."),
      problem,
      h("button", { class: "primary" }, "Open"),
    );
    const dialog = h("dialog", { class: "key" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const response = await fetch("/login", withBody({ key: input.value })).catch(() => null);
      if (response?.ok) {
        dialog.close();
        dialog.remove();
        asking = null;
        done();
      } else {
        problem.textContent = response ? "The key is wrong." : "The server does not answer.";
        input.select();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/**
 * Replace the content of an element by an error, with a button to try again if `retry` is given. The error of an
 * aborted request is not shown.
 */
export function showError(element, error, { retry = null } = {}) {
  if (isAbort(error)) return;
  const message = error?.message || String(error);
  element.replaceChildren(
    h(
      "div",
      { class: "notice problem", role: "alert" },
      h("p", {}, message),
      retry && h("button", { type: "button", onclick: retry }, "Try again"),
    ),
  );
}
