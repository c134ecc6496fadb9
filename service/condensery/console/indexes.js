// Indexes: what there is, a new one, and their aliases; one index is in index.js.
import { ask, nameInPath, wrote } from "./api.js";
import { done, failure, field, h, put, select, setOptions, table, tag } from "./dom.js";
import { indexView } from "./index.js";

export function indexesPage(root) {
  const list = h("section", { class: "card", "aria-label": "All indexes" }, h("p", { class: "muted" }, "Reading …"));
  const said = h("div", { "aria-live": "polite" });
  const one = h("div", { class: "stack" });
  const aliasCard = h("section", { class: "card", "aria-label": "Aliases" });
  let opened = "", view = null;

  const name = h("input", { type: "text", required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,63}", placeholder: "notes" });
  const encoder = select([["", "the server's default"]]);
  const kind = select([["flat", "flat: exact"], ["hnsw", "hnsw: a graph, for many"], ["ivf_pq", "ivf_pq: compressed, for millions"]]);
  const create = h("details", { class: "card" }, h("summary", {}, "Make an index"), h("form", { onsubmit: (event) => { event.preventDefault(); make(); } },
    h("div", { class: "halves" }, field("Name", name, "Lower case letters, digits, dots, dashes."), field("Encoder", encoder), field("Kind", kind)), h("div", { class: "row" }, h("button", { type: "submit" }, "Make it"))));
  root.append(h("h1", {}, "Indexes"), h("p", { class: "lead" }, "Documents, cut into passages, and a vector of each. What the server acknowledges is on its disk."), said, list, create, one, aliasCard);

  async function make() {
    try {
      await ask("PUT", `/v1/indexes/${nameInPath(name.value)}`, { kind: kind.value, ...(encoder.value ? { encoder: encoder.value } : {}) });
      put(said, done(`The index ${name.value} is there. Now add files or documents to it.`));
      wrote("index", name.value);
      document.dispatchEvent(new CustomEvent("go", { detail: `/console/indexes/${nameInPath(name.value)}` }));
      name.value = "";
      create.open = false;
    } catch (error) {
      put(said, failure(error));
    }
  }

  async function setAliases(actions, words) {
    try {
      await ask("POST", "/v1/indexes/aliases", { actions });
      put(said, done(words));
      wrote("index", "aliases");
    } catch (error) {
      put(said, failure(error));
    }
  }

  async function refresh() {
    try {
      const [{ data: indexes }, { data: aliases }, { data: models }] = await Promise.all(["/v1/indexes", "/v1/indexes/aliases", "/v1/models"].map((path) => ask("GET", path)));
      put(list, h("h2", {}, "All indexes"), indexes.length ? table(["index", "#documents", "#passages", "encoder", "kind", "aliases"], indexes.map((item) => [
        h("a", { href: `/console/indexes/${nameInPath(item.name)}`, "data-page": true, class: "mono" }, item.name), item.documents.toLocaleString("en"), item.passages.toLocaleString("en"),
        [item.encoder, item.prompts_outdated ? tag("older prompts: rebuild it", "warn") : null], item.kind,
        aliases.filter(({ index }) => index === item.name).map(({ alias }) => alias).join(", ")])) : h("p", { class: "muted" }, "There is none yet."));
      setOptions(encoder, [["", "the server's default"], ...models.filter((model) => model.kind === "encoder" && !model.alias_of).map(({ id }) => id)]);
      showAliases(aliases, indexes);
    } catch (error) {
      put(list, h("h2", {}, "All indexes"), failure(error, refresh));
    }
  }

  // The form stays as it is, with what was typed; the list above it is read again.
  const alias = h("input", { type: "text", required: true, pattern: "[a-z0-9][a-z0-9._\\-]{0,63}", placeholder: "live" });
  const target = select([]), aliasRows = h("div", {});
  put(aliasCard, h("h2", {}, "Aliases"), h("p", { class: "muted" }, "A second name of an index. Setting one that is there moves it, at one moment."), aliasRows,
    h("form", { class: "row end", onsubmit: (event) => { event.preventDefault(); setAliases([{ create_alias: { alias: alias.value, index: target.value } }], `${alias.value} leads to ${target.value}.`); } },
      field("Alias", alias), field("Leads to", target), h("button", { type: "submit" }, "Set")));
  function showAliases(aliases, indexes) {
    const rows = aliases.map((item) => [h("span", { class: "mono" }, item.alias), h("span", { class: "mono" }, item.target === item.index ? item.index : `${item.target} → ${item.index}`),
      h("button", { type: "button", class: "danger small", "aria-label": `Delete the alias ${item.alias}`, onclick: () => setAliases([{ delete_alias: { alias: item.alias } }], `The alias ${item.alias} is gone.`) }, "Delete")]);
    put(aliasRows, rows.length ? table(["alias", "leads to", "action"], rows) : null);
    setOptions(target, indexes.map((item) => item.name), opened && !alias.value ? opened : undefined);
  }

  function open(wanted) {
    view?.close();
    opened = wanted;
    if (wanted) target.value = wanted;
    view = wanted ? indexView(wanted) : null;
    put(one, ...(view ? [view.root] : []));
  }
  addEventListener("beforeunload", (event) => { if (view?.busy()) event.preventDefault(); });
  refresh();
  return { title: "Indexes", refresh: () => { refresh(); view?.refresh(); },
    show: (wanted = "") => { if (wanted !== opened) open(wanted); },
    written: (what, changed) => { if (what !== "index") return; refresh(); if (changed === opened) view?.refresh(); } };
}
