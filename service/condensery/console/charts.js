// Small charts: a waterfall of times, a matrix of similarities, lines over the last minutes.
import { h, millis, svg } from "./dom.js";

/** Parts of a time one after the other, each `[name, milliseconds]`, and their total. */
export function waterfall(parts, total) {
  const span = Math.max(total, parts.reduce((sum, part) => sum + part[1], 0), 0.001);
  let from = 0;
  const rows = parts.map(([name, ms]) => {
    const bar = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { x: (100 * from) / span, y: 0, width: Math.max(0.4, (100 * ms) / span), height: 10, rx: 0.5 }));
    from += ms;
    return [h("span", {}, name), bar, h("span", { class: "number" }, millis(ms))];
  });
  rows.push([h("span", { class: "total" }, "total"), h("span"), h("span", { class: "number total" }, millis(total))]);
  return h("div", { class: "waterfall" }, rows);
}

/** Numbers of 0 to 1 as a table whose cells are the darker the greater they are. */
export function matrix(names, values, caption) {
  const label = (name) => h("th", { scope: "col", title: name }, name);
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", { class: "matrix" }, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, h("td"), names.map((_, i) => label(String(i + 1))))),
      h("tbody", {}, values.map((row, i) => h("tr", {}, h("th", { scope: "row", title: names[i] }, `${i + 1} ${names[i]}`),
        row.map((value) => h("td", { "data-heat": Math.max(0, Math.min(5, Math.floor(value * 5.999))) }, value.toFixed(2))))))));
}

/**
 * One or two lines over time.
 *
 * `series` are `{name, values}` with as many values as there are `times` (seconds), null where there is none;
 * `format` makes a value text.
 */
export function lineChart(title, { times, span, series, format, note }) {
  const known = series.flatMap((line) => line.values).filter((value) => value !== null);
  const top = Math.max(...known, 0) || 1;
  const now = times.at(-1) ?? 0;
  const place = (i, value) => `${(300 * (1 - (now - times[i]) / span)).toFixed(1)},${(70 - (66 * value) / top).toFixed(1)}`;
  const paths = series.map((line, number) => {
    let path = "", pen = false;
    line.values.forEach((value, i) => {
      if (value !== null) path += `${pen ? "L" : "M"}${place(i, value)}`;
      pen = value !== null;
    });
    return svg("path", { d: path || "M0,0", class: number ? "second" : null });
  });
  const last = (line) => { const value = line.values.findLast((item) => item !== null); return value === undefined ? "–" : format(value); };
  const current = series.map((line) => (line.name ? `${line.name} ${last(line)}` : last(line))).join(", ");
  const readout = h("strong", {}, current);
  const drawing = svg("svg", { viewBox: "0 0 300 72", preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: now ${current}; at most ${known.length ? format(Math.max(...known)) : "–"} in the last ${Math.round(span / 60)} minutes` },
    svg("line", { x1: 0, x2: 300, y1: 70, y2: 70 }), svg("line", { x1: 0, x2: 300, y1: 4, y2: 4 }), paths);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = now - span * (1 - (event.clientX - box.left) / box.width);
    let near = 0;
    times.forEach((time, i) => { if (Math.abs(time - wanted) < Math.abs(times[near] - wanted)) near = i; });
    const ago = Math.round((now - times[near]) / 5) * 5;
    const text = series.map((line) => (line.values[near] === null || line.values[near] === undefined ? "–" : format(line.values[near]))).join(", ");
    readout.textContent = `${ago ? `${ago < 120 ? `${ago} s` : `${Math.round(ago / 60)} min`} ago: ` : ""}${text}`;
  });
  drawing.addEventListener("pointerleave", () => { readout.textContent = current; });
  return h("figure", { class: "card chart" }, h("figcaption", {}, h("span", {}, title), readout), drawing,
    h("div", { class: "axis" }, h("span", {}, `${Math.round(span / 60)} min ago`), h("span", {}, known.some(Boolean) ? `top ${format(top)}` : ""), h("span", {}, "now")),
    note ? h("p", { class: "hint" }, note) : null);
}
