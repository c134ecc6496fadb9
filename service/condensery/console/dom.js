// Elements, and numbers with their units. Text is only ever set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Put children in the place of what an element holds; null ones are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  fill(element, null, children);
}

let made = 0;
/** A control with its label; `hint` says what it is in a line. */
export function field(label, control, hint) {
  control.id ||= `field-${++made}`;
  const parts = [h("label", { for: control.id }, label), control];
  if (hint) {
    const id = `${control.id}-hint`;
    control.setAttribute("aria-describedby", id);
    parts.push(h("p", { class: "hint", id }, hint));
  }
  return h("div", {}, parts);
}

export function select(options, value, attributes) {
  const element = h("select", attributes || {});
  setOptions(element, options, value);
  return element;
}

/** Replace a select's options (`[value, text]` or `value`), and keep what was chosen if it is still there. */
export function setOptions(element, options, value) {
  const kept = value ?? element.value;
  const all = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  element.replaceChildren(...all.map(([key, text]) => h("option", { value: key }, text)));
  if (all.some(([key]) => key === kept)) element.value = kept;
}

export const facts = (rows) =>
  h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** A table; `columns` are names, and those that begin with # are of numbers. */
export function table(columns, rows, caption) {
  const numeric = columns.map((name) => (name.startsWith("#") ? "number" : null));
  const head = columns.map((name, i) => h("th", { scope: "col", class: numeric[i] }, name.replace(/^#/, "")));
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption || columns.join(", ").replaceAll("#", "") },
    h("table", {}, caption ? h("caption", {}, caption) : null, h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) => h("td", { class: numeric[i] }, cell)))))));
}

export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);

/** What went wrong, in words; `retry` is what to try again. */
export function failure(error, retry) {
  return h("div", { class: "failure", role: "alert" }, h("p", {}, error.message || String(error)),
    error.requestId ? h("p", { class: "hint" }, `In the server's log under request ${error.requestId}.`) : null,
    retry ? h("button", { type: "button", class: "quiet small", onclick: retry }, "Try again") : null);
}

export const done = (...text) => h("p", { class: "done", role: "status" }, ...text);

const PREFIXES = ["", "k", "M", "G", "T", "P"];
/** 1234567 -> "1.23 M"; of three digits that matter. */
export function short(value, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let size = Math.abs(value), step = 0;
  while (size >= 999.5 && step < PREFIXES.length - 1) { size /= 1000; step += 1; }
  const digits = size === 0 || Number.isInteger(size) ? 0 : size < 10 ? 2 : size < 100 ? 1 : 0;
  const number = `${value < 0 ? "−" : ""}${size.toFixed(digits)}`;
  return PREFIXES[step] || unit ? `${number} ${PREFIXES[step]}${unit}` : number;
}
export const flops = (value) => short(value, "FLOPs");
export const bytes = (value) => {
  if (!(value >= 1024)) return `${value ?? "–"} bytes`;
  const step = Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** step).toFixed(value / 1024 ** step < 10 ? 1 : 0)} ${["", "KiB", "MiB", "GiB", "TiB"][step]}`;
};
export function millis(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 10 ? `${value.toFixed(0)} ms` : `${value.toFixed(1)} ms`;
}
export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
export const score = (value) => (value === null || value === undefined ? "not scored" : value.toFixed(3));
export function when(seconds) {
  const date = new Date(seconds * 1000);
  return h("time", { datetime: date.toISOString() }, date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }));
}
