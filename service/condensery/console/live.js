// Live: the last 15 minutes from /metrics, read every few seconds and kept in this tab; no Prometheus needed.
import { askText } from "./api.js";
import { lineChart } from "./charts.js";
import { bytes, count, facts, failure, flops, h, millis, put, short, table, tag } from "./dom.js";
import { quantile, readSample } from "./prometheus.js";

const STEP_SECONDS = 5;
const SPAN_SECONDS = 15 * 60;
const SPANS = [60, 120, 300, SPAN_SECONDS];
const STORE = "condensery-live";
// Quantiles and rates are of this many readings together: one minute, and 15 seconds.
const WINDOW = 12;
const RATE_WINDOW = 3;

export function livePage(root) {
  let samples = stored(), timer = null, reading = false;
  const now = h("div", {}), charts = h("div", { class: "charts" }), below = h("div", { class: "stack" }), trouble = h("div", {});
  root.append(h("h1", {}, "Live"), h("p", { class: "lead" },
    `The last 15 minutes of this server, read from /metrics every ${STEP_SECONDS} s for as long as this tab is open. For longer times and alerts, point a Prometheus at /metrics.`), trouble, now, charts, below);

  async function read() {
    if (reading) return;
    reading = true;
    try {
      const sample = readSample(await askText("/metrics"), Date.now() / 1000);
      if (samples.length && sample.requests < samples.at(-1).requests) samples.push({ time: sample.time - 1, gap: true });
      samples.push(sample);
      samples = samples.filter(({ time }) => time > sample.time - SPAN_SECONDS);
      keep(samples);
      trouble.replaceChildren();
    } catch (error) {
      if (samples.length && !samples.at(-1).gap) samples.push({ time: Date.now() / 1000, gap: true });
      put(trouble, failure(error, read));
      if (error.status === 401) pause();
    } finally {
      reading = false;
    }
    draw();
  }
  function draw() {
    const last = samples.findLast((sample) => !sample.gap);
    if (root.hidden || !last) return;
    put(now, nowCard(last, samples));
    put(charts, ...chartsOf(samples));
    put(below, ...tablesOf(last, samples));
  }
  function pause() {
    clearInterval(timer);
    timer = null;
  }
  function begin() {
    if (!timer) timer = setInterval(read, STEP_SECONDS * 1000);
    read();
  }
  return { title: "Live", show: () => { draw(); begin(); }, refresh: begin };
}

// The tab's storage outlives a reload, not the tab.
function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE) || "[]").filter(({ time }) => time > Date.now() / 1000 - SPAN_SECONDS);
  } catch {
    return [];
  }
}
function keep(samples) {
  try {
    sessionStorage.setItem(STORE, JSON.stringify(samples));
  } catch { /* full: the page shows what it holds all the same */ }
}

/** The reading `steps` before one, not over a gap; null if there is none. */
function before(samples, i, steps) {
  let first = null;
  for (let j = i - 1; j >= Math.max(0, i - steps); j -= 1) {
    if (samples[j].gap) break;
    first = samples[j];
  }
  return samples[i].gap ? null : first;
}
const seriesOf = (samples, value) => samples.map((sample) => (sample.gap ? null : value(sample)));
const changes = (samples, steps, value) => samples.map((sample, i) => {
  const first = before(samples, i, steps);
  return first ? value(first, sample) : null;
});
const rate = (name) => (a, b) => (b[name] - a[name]) / (b.time - a.time);
const share = (part, whole) => (a, b) => (b[whole] > a[whole] ? (b[part] - a[part]) / (b[whole] - a[whole]) : null);

function chartsOf(samples) {
  const times = samples.map(({ time }) => time);
  // The first minutes are drawn wide, too.
  const span = SPANS.find((seconds) => times.at(-1) - times[0] <= seconds) || SPAN_SECONDS;
  const draw = (title, format, lines, note) => lineChart(title, { times, span, format, note,
    series: lines.map(([name, values]) => ({ name, values })) });
  const latency = (q) => changes(samples, WINDOW, (a, b) => quantile(a.latency, b.latency, q));
  const ttft = (q) => changes(samples, WINDOW, (a, b) => quantile(a.ttft, b.ttft, q));
  const seconds = (value) => millis(1000 * value);
  const perSecond = (value) => `${short(Math.round(100 * value) / 100)}/s`;
  return [
    draw("Requests", perSecond, [["all", changes(samples, RATE_WINDOW, rate("requests"))], ["failed", changes(samples, RATE_WINDOW, rate("errorCount"))]]),
    draw("Time of a request", seconds, [["p95", latency(0.95)], ["p50", latency(0.5)]], "Of the minute before."),
    draw("Time to first token", seconds, [["p95", ttft(0.95)], ["p50", ttft(0.5)]], "Of answers, of the minute before."),
    draw("Queue", (value) => short(value), [["items", seriesOf(samples, ({ queue }) => queue)]], "Items that wait for a device."),
    draw("Batch fill", (value) => value.toFixed(1), [["items a pass", changes(samples, WINDOW, share("items", "passes"))]], "Texts that share a forward pass."),
    draw("Tokens", perSecond, [["read", changes(samples, RATE_WINDOW, rate("input"))], ["written", changes(samples, RATE_WINDOW, rate("output"))]]),
    draw("Cache room", (value) => `${value.toFixed(0)}%`, [["used", seriesOf(samples, ({ cacheUsed, cacheLimit }) => (cacheLimit ? (100 * cacheUsed) / cacheLimit : null))]], "Of the positions that generators keep keys and values for."),
    draw("Compression", (value) => `${value.toFixed(1)}`, [["tokens a vector", changes(samples, WINDOW, share("tokensIn", "vectorsOut"))]], "Passages are read as vectors, each in the place of so many tokens."),
    draw("Memory", bytes, [["models", seriesOf(samples, ({ memory }) => memory)], ["contexts", seriesOf(samples, ({ contextBytes }) => contextBytes)]], "Weights of the models that serve, and compressed contexts that are held."),
  ];
}

function nowCard(last, samples) {
  const saved = last.plain - last.used;
  const minutes = Math.max(1, Math.round((last.time - samples[0].time) / 60));
  return h("section", { class: "card", "aria-label": "Since the server's start" }, h("h2", {}, "Since the server's start"),
    facts([["requests", last.requests.toLocaleString("en")], ["failed", last.errorCount.toLocaleString("en")], ["refused for a limit", last.rejected.toLocaleString("en")],
      ["connections now", last.connections], ["answers being written", last.running], ["that wait", last.waiting], ["passages compressed", last.docs.toLocaleString("en")],
      ["read as text instead", last.fallbacks], last.plain ? [saved < 0 ? "FLOPs over plain text" : "FLOPs saved", flops(Math.abs(saved))] : null]),
    h("p", { class: "hint" }, `${count(samples.length, "reading")} of the last ${minutes} min are in this tab.`));
}

function tablesOf(last, samples) {
  const first = samples.find((sample) => !sample.gap);
  const parts = [h("section", { class: "card" }, h("h2", {}, "By model"),
    table(["model", "state", "#requests", "#tokens read", "#tokens written", "#waiting", "#weights"], Object.entries(last.models).map(([name, model]) =>
      [h("span", { class: "mono" }, name), tag(model.state, model.state === "ready" ? "good" : "warn"), model.requests.toLocaleString("en"), short(model.input), short(model.output), model.queue, bytes(model.memory)])))];
  const kinds = Object.entries(last.errors).map(([code, number]) => [code, number, number - (first.errors[code] || 0)]).sort((a, b) => b[2] - a[2]);
  parts.push(h("section", { class: "card" }, h("h2", {}, "Failed requests"), kinds.length
    ? table(["error", "#since the first reading here", "#since the start"], kinds.map(([code, all, here]) => [h("code", {}, code), here, all]))
    : h("p", { class: "muted" }, "None since the server's start.")));
  return parts;
}
