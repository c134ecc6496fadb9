// Models: what is stored and what serves; load, unload, verify, aliases; a model's card, report and plots.
import { ask, askBlob, askText, nameInPath, wrote } from "./api.js";
import { bytes, count, done, facts, failure, field, h, put, table, tag, when } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

const STATES = { READY: "good", LOADING: "warn", UNLOADING: "warn", UNAVAILABLE: "" };

export function modelsPage(root) {
  const list = h("section", { class: "card", "aria-label": "Stored models" }, h("p", { class: "muted" }, "Reading …"));
  const aliases = h("section", { class: "card", "aria-label": "Aliases" });
  const said = h("div", { "aria-live": "polite" }), detail = h("section", { "aria-label": "Model", class: "stack" });
  root.append(h("h1", {}, "Models"), h("p", { class: "lead" }, "What the server's stores hold, and which of it serves. A load goes on beside what serves, and takes its place in one step; no request fails for it."),
    said, list, aliases, detail);
  let opened = "";

  async function refresh() {
    const [models, stored, named] = await Promise.allSettled([ask("GET", "/v1/models"), ask("POST", "/v2/repository/index", {}), ask("GET", "/v1/models/aliases")]);
    if (models.status === "rejected") {
      put(list, failure(models.reason, refresh));
      return;
    }
    const running = new Map(models.value.data.filter((model) => !model.alias_of).map((model) => [model.id, model]));
    // The list of what is stored needs the scope admin; what serves does not.
    const versions = stored.status === "fulfilled" ? stored.value : [...running.values()].map(({ id, version }) => ({ name: id, version, state: "READY", reason: "" }));
    put(list, h("h2", {}, "Stored models"),
      table(["model", "version", "state", "kind", "method", "#dimensions", "#most tokens", "actions"], versions.map((item) => row(item, running.get(item.name)))),
      stored.status === "rejected" ? h("p", { class: "hint" }, `Only those that serve are listed. ${stored.reason.message}`) : null);
    if (named.status === "fulfilled") showAliases(named.value.aliases, [...running.keys()]);
    if (opened) open(opened);
  }

  function row({ name, version, state, reason }, model) {
    const serves = model && model.version === version ? model : null;
    const button = (text, work, kind = "quiet") => h("button", { type: "button", class: `${kind} small`, "aria-label": `${text} ${name} ${version}`, onclick: work }, text);
    const buttons = state === "READY"
      ? [button("Verify", () => act(name, "reload", { version }, "Verifying")), button("Unload", () => unload(name), "danger")]
      : [button("Load", () => act(name, "load", { version }, "Loading"))];
    return [h("a", { href: `/console/models/${nameInPath(name)}`, "data-page": true, class: "mono" }, name), version,
      h("span", { title: reason || null }, tag(state.toLowerCase(), STATES[state] || ""), reason ? h("span", { class: "hint" }, ` ${reason}`) : null),
      serves?.kind || "", serves ? (serves.method === "none" ? "uncompressed" : serves.method) : "", serves?.dims ?? "", serves?.max_tokens ?? "", h("span", { class: "row" }, buttons)];
  }

  async function act(name, action, body, words) {
    put(said, done(`${words} ${name}: its files are checked against their hashes, and it is tried beside what serves …`));
    try {
      const reply = await ask("POST", `/v1/models/${nameInPath(name)}/${action}`, body);
      const stranded = reply.stranded_indexes.length ? ` These indexes were made by another version, and answer 409 until they are rebuilt: ${reply.stranded_indexes.join(", ")}.` : "";
      const loaded = reply.changed ? `${name} ${reply.model.version} serves, loaded in ${reply.seconds.toFixed(1)} s (${bytes(reply.memory_bytes)} of weights).` : `${name} ${reply.model.version} serves already.`;
      put(said, done((action === "reload" ? "Every file is what its hash says. " : "") + loaded + stranded));
      wrote("model", name);
    } catch (error) {
      put(said, failure(error));
    }
    refresh();
  }

  async function unload(name, force = false) {
    if (!confirm(force ? `Unload ${name} by force? Who names no model, and indexes that it made, are refused then.` : `Unload ${name}? Requests that it has begun are finished first.`)) return;
    try {
      const reply = await ask("POST", `/v1/models/${nameInPath(name)}/unload`, force ? { force } : {});
      put(said, done(`${name} ${reply.version} is unloaded; its memory is free.`, reply.stranded_indexes.length ? ` These indexes need it: ${reply.stranded_indexes.join(", ")}.` : ""));
      wrote("model", name);
    } catch (error) {
      const card = failure(error);
      if (error.code === "model_in_use" && !force) card.append(h("button", { type: "button", class: "danger small", onclick: () => unload(name, true) }, "Unload by force"));
      put(said, card);
    }
    refresh();
  }

  async function setAliases(changes) {
    try {
      await ask("POST", "/v1/models/aliases", { aliases: changes });
      put(said, done("The aliases are set."));
      wrote("model", Object.keys(changes)[0]);
    } catch (error) {
      put(said, failure(error));
    }
    refresh();
  }

  // The form stays as it is, with what was typed; the list above it is read again.
  const alias = h("input", { type: "text", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" });
  const target = h("input", { type: "text", required: true, list: "model-names", placeholder: "oscar-mini, or oscar-mini@samples" });
  const aliasRows = h("div", {}), names = h("datalist", { id: "model-names" });
  put(aliases, h("h2", {}, "Aliases"), h("p", { class: "muted" }, "Another name for a model that serves, on every door; a pair's alias may carry an index, for chat clients."), aliasRows, names,
    h("form", { class: "row end", onsubmit: (event) => { event.preventDefault(); setAliases({ [alias.value]: target.value }); } }, field("Alias", alias), field("Leads to", target), h("button", { type: "submit" }, "Set")));
  function showAliases(now, running) {
    const rows = Object.entries(now).map(([name, to]) => [h("span", { class: "mono" }, name), h("span", { class: "mono" }, to),
      h("button", { type: "button", class: "danger small", "aria-label": `Remove the alias ${name}`, onclick: () => setAliases({ [name]: null }) }, "Remove")]);
    put(aliasRows, rows.length ? table(["alias", "leads to", "action"], rows) : h("p", { class: "muted" }, "None."));
    put(names, running.map((name) => h("option", { value: name })));
  }

  async function open(name) {
    opened = name;
    try {
      const model = await ask("GET", `/v1/models/${nameInPath(name)}`);
      const pair = model.pair;
      const parts = [h("div", { class: "card" }, h("h2", {}, name), facts([["kind", model.kind], ["method", model.method], ["version", model.version], ["runs on", `${model.device}, ${model.dtype}`],
        ["most tokens", model.max_tokens], model.dims ? ["dimensions", model.dims] : null, ["licence", model.licence], ["loaded since", when(model.created)],
        pair ? ["vectors a passage", pair.vectors.join(", ")] : null, pair ? ["tokens a vector", pair.rates.join(", ")] : null, pair ? ["passages it reads best", pair.top_n] : null]),
        h("p", { class: "hint mono" }, model.fingerprint))];
      put(detail, ...parts, await reportCards(name));
    } catch (error) {
      put(detail, h("div", { class: "card" }, h("h2", {}, name), failure(error, () => open(name))));
    }
  }
  refresh();
  return { title: "Models", refresh, written: (what, _, elsewhere) => { if (what === "model" && elsewhere) refresh(); },
    show: (name) => { if (name && name !== opened) open(name).then(() => detail.scrollIntoView()); if (!name) { opened = ""; detail.replaceChildren(); } } };
}

/** A model's card with its plots, and the report's numbers; what it was never measured at says so. */
async function reportCards(name) {
  const path = `/v1/models/${nameInPath(name)}/report`;
  const fold = h("div", { class: "stack" });
  let report;
  try {
    report = await ask("GET", path, undefined, { accept: "application/json" });
  } catch (error) {
    if (error.status !== 404) throw error;
    fold.append(h("div", { class: "card" }, h("h2", {}, "Report"), h("p", { class: "muted" }, "This model has no report: it was not measured.")));
    return fold;
  }
  const shown = new Set();
  const plot = (plotName, words) => {
    shown.add(plotName);
    const image = h("img", { alt: words || plotName });
    askBlob(`${path}/plots/${plotName}.png`).then((blob) => { image.src = URL.createObjectURL(blob); }, () => image.replaceWith(`(the plot ${plotName} could not be read)`));
    return image;
  };
  const image = (address, words) => { const found = address.match(/^plots\/([a-z0-9_-]+)\.png$/); return found && report.plots.includes(found[1]) ? plot(found[1], words) : words; };
  if (report.card) {
    const card = await askText(`${path}?format=markdown`, { accept: "text/markdown" });
    fold.append(h("article", { class: "card card-text" }, renderMarkdown(card, image)));
  }
  const rest = report.plots.filter((other) => !shown.has(other));
  if (rest.length) fold.append(h("div", { class: "card card-text" }, h("h2", {}, "Plots"), rest.map((other) => h("figure", {}, plot(other, other), h("figcaption", { class: "hint" }, other)))));
  fold.append(h("details", { class: "card" }, h("summary", {}, `The report as it is stored (${count(Object.keys(report.report).length, "part")})`), h("pre", {}, JSON.stringify(report.report, null, 2))));
  return fold;
}
