// Requests of this server's documented routes, and their failures in words.

const KEY = "condensery-key";

// sessionStorage is this tab's: another tab, and this one once it is closed, has no key.
export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// Events for the frame: `need-key`, `no-server`, `answered`; and `written` {what, name} of this or another tab.
export const events = new EventTarget();
const tabs = new BroadcastChannel("condensery");
tabs.onmessage = (message) => events.dispatchEvent(new CustomEvent("written", { detail: { ...message.data, elsewhere: true } }));

/** Tell this tab's other pages, and other tabs, that something was changed. */
export function wrote(what, name) {
  tabs.postMessage({ what, name });
  events.dispatchEvent(new CustomEvent("written", { detail: { what, name } }));
}

const WORDS = {
  400: "The server can't use this request.",
  403: "That is not allowed.",
  404: "That is not there.",
  408: "The request came too slowly.",
  409: "That is at odds with what is there.",
  410: "That is no more.",
  413: "That is more than the server takes at once.",
  422: "The server can't use this request.",
  424: "The model failed at this.",
  429: "The server has no room for more just now; try again in a moment.",
  500: "The server failed at this.",
  502: "The server that writes the answers failed.",
  503: "The server takes no requests just now; try again in a moment.",
  504: "It took longer than the time that it may take.",
  507: "The server's disk is full; nothing was lost of what is there.",
};

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", requestId = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, requestId });
  }
}

/** The error of a reply, by its status and body. */
function readError(status, text, requestId) {
  let detail = text, code = "";
  try {
    const body = JSON.parse(text);
    const inner = typeof body.error === "object" && body.error ? body.error : null;
    detail = inner ? inner.message : body.error || body.message || text;
    code = inner?.code || "";
  } catch { /* no JSON: a proxy's page, perhaps */
    if (detail.trimStart().startsWith("<")) detail = "Something between this page and the server replied, not the server.";
  }
  return explain(status, code, detail, requestId || "");
}

/** The error of a status, with what the server says of it. */
export function explain(status, code, detail, requestId = "") {
  if (status === 401) {
    events.dispatchEvent(new CustomEvent("need-key", { detail: { wrong: Boolean(key.get()) } }));
    const words = key.get() ? "The server does not know this API key." : "This server wants an API key (top right).";
    return new ApiError(words, { status, code });
  }
  const words = WORDS[status] || `The server replied ${status}.`;
  return new ApiError(detail ? `${words} ${detail}` : words, { status, code, requestId: status >= 500 ? requestId : "" });
}

async function send(method, path, body, { signal, accept, raw } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (accept) headers.accept = accept;
  if (body !== undefined && !raw) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: raw || body === undefined ? body : JSON.stringify(body), cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
  events.dispatchEvent(new Event("answered"));
  if (!response.ok) throw readError(response.status, await response.text(), response.headers.get("x-request-id"));
  return response;
}

export function lost() {
  events.dispatchEvent(new Event("no-server"));
  return new ApiError(`No reply from ${location.host}: the server is down or restarting, or the network is. What you typed is still here.`);
}

/** Ask a route for JSON. */
export async function ask(method, path, body, options) {
  return (await askWhole(method, path, body, options)).data;
}

/** Ask a route for JSON; returns its headers and the round trip in milliseconds as well. */
export async function askWhole(method, path, body, options) {
  const began = performance.now();
  const response = await send(method, path, body, options);
  let data;
  try {
    data = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
  return { data, headers: response.headers, ms: performance.now() - began };
}

export const askText = async (path, options) => (await send("GET", path, undefined, options)).text();
export const askBlob = async (path, options) => (await send("GET", path, undefined, options)).blob();

/** Ask a route for server-sent events; yields `{event, data}`, and throws what an `error` event says. */
export async function* askStream(path, body, { signal } = {}) {
  const response = await send("POST", path, body, { signal, accept: "text/event-stream" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", ended = false;
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw lost();
    }
    if (part.done) break;
    rest += part.value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const event = readEvent(rest.slice(0, end));
      if (event.event === "error") {
        const error = JSON.parse(event.data).error;
        throw new ApiError(`The answer broke off. ${error.message}`, { code: error.code });
      }
      if (event.event === "done") ended = true;
      else if (event.data) yield { event: event.event, data: JSON.parse(event.data) };
    }
  }
  if (!ended) throw new ApiError("The answer broke off: the connection ended before the answer did.");
}

function readEvent(text) {
  const event = { event: "message", data: "" };
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("event")) event.event = value;
    if (line.startsWith("data")) event.data += value;
  }
  return event;
}

/** Send a form, and tell how much of it is sent: `progress(share)`, of 0 to 1. fetch can't tell. */
export function sendForm(path, form, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    if (key.get()) request.setRequestHeader("authorization", `Bearer ${key.get()}`);
    request.upload.onprogress = (event) => progress(event.total ? event.loaded / event.total : 0);
    request.onerror = () => reject(lost());
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    request.onload = () => {
      const text = request.responseText;
      if (request.status !== 200) reject(readError(request.status, text, request.getResponseHeader("x-request-id")));
      else {
        try {
          resolve(JSON.parse(text));
        } catch {
          reject(lost());
        }
      }
    };
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

export const nameInPath = (name) => encodeURIComponent(name);
