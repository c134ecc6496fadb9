// One index: what it holds, adding to it, browsing and querying it, its snapshots and rebuild.
import { ask, nameInPath, wrote } from "./api.js";
import { bytes, count, done, facts, failure, field, h, put, score, select, setOptions, table, tag, when } from "./dom.js";
import { filterField } from "./filters.js";
import { uploadForm } from "./upload.js";

const PAGE_DOCUMENTS = 20;
const POLL_MS = 1000;

export function indexView(name) {
  const path = `/v1/indexes/${nameInPath(name)}`;
  const about = h("div", { class: "card" }), said = h("div", { "aria-live": "polite" });
  const say = (...text) => put(said, done(...text));
  const fail = (error) => put(said, failure(error));
  const changed = () => wrote("index", name);
  const adding = addForms(name, path, changed), finding = queryForm(path), browsing = browseForm(path, say, fail, changed);
  const keeping = keepForms(name, path, say, fail, changed);
  const root = h("section", { class: "stack", "aria-label": `Index ${name}` }, about, said, h("div", { class: "halves" }, adding.root, finding), browsing.root, keeping.root);

  async function refresh() {
    try {
      const info = await ask("GET", path);
      put(about, h("div", { class: "row spread" }, h("h2", {}, info.name === name ? name : `${name} → ${info.name}`),
        h("button", { type: "button", class: "danger small", onclick: drop }, "Delete the index")),
      facts([["documents", info.documents.toLocaleString("en")], ["passages", info.passages.toLocaleString("en")], ["encoder", info.encoder], ["dimensions", info.dims], ["metric", info.metric],
        ["kind", info.kind === info.searched_as ? info.kind : `${info.kind}, searched as ${info.searched_as}`], info.tombstones ? ["deleted, not yet packed", info.tombstones] : null]),
      info.trains_at ? h("p", { class: "hint" }, `It is searched as ${info.searched_as} until it holds ${count(info.trains_at, "passage")}.`) : null);
    } catch (error) {
      put(about, h("h2", {}, name), failure(error, error.status === 404 ? null : refresh));
    }
    keeping.refresh();
  }
  async function drop() {
    if (!confirm(`Delete the index ${name} with all that it holds? Its snapshots stay.`)) return;
    try {
      await ask("DELETE", path);
      changed();
      document.dispatchEvent(new CustomEvent("go", { detail: "/console/indexes" }));
    } catch (error) {
      fail(error);
    }
  }
  refresh();
  return { root, refresh, busy: adding.busy, close: keeping.close };
}

function addForms(name, path, changed) {
  const upload = uploadForm(path, changed);
  const id = h("input", { type: "text", required: true, placeholder: "decision-1" });
  const text = h("textarea", { rows: 4, required: true });
  const said = h("div", { "aria-live": "polite" });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); write(); } }, field("Id", id), field("Text", text), said, h("div", { class: "row" }, h("button", { type: "submit" }, "Add the document")));
  async function write() {
    try {
      const { documents: [there] } = await ask("POST", `${path}/documents/get`, { ids: [id.value] });
      // Another tab, or another person, may have written it.
      if (there && !confirm(`${id.value} is there already (“${there.text.slice(0, 80)}”). Replace it?`)) return;
      const written = await ask("POST", `${path}/documents`, { documents: [{ id: id.value, text: text.value }] });
      put(said, done(`${there ? "Replaced" : "Added"}: ${count(written.passages, "passage")}, ${count(written.tokens, "token")}.`));
      id.value = text.value = "";
      changed();
    } catch (error) {
      put(said, failure(error));
    }
  }
  return { root: h("div", { class: "card" }, h("h2", {}, "Add"), upload.root, h("details", {}, h("summary", {}, "Type a document"), form)), busy: () => upload.busy() || Boolean(text.value) };
}

function queryForm(path) {
  const query = h("input", { type: "text", required: true });
  const mode = select([["dense", "its meaning (dense)"], ["bm25", "its words (bm25)"], ["hybrid", "both (hybrid)"]]);
  const most = h("input", { type: "number", min: 1, max: 1000, value: 5 });
  const filter = filterField();
  const results = h("div", { "aria-live": "polite" });
  async function run() {
    const chosen = filter.read(), began = performance.now();
    try {
      const { results: hits } = await ask("POST", `${path}/query`, { query: query.value, mode: mode.value, top_k: Number(most.value) || 5, ...(chosen ? { filter: chosen } : {}) });
      put(results, h("p", { class: "hint" }, `${count(hits.length, "passage")} in ${(performance.now() - began).toFixed(0)} ms`), ...hits.map((hit, i) => h("div", { class: "passage" },
        h("div", { class: "row spread" }, h("h3", { class: "mono" }, `${i + 1}. ${hit.id}`), tag(score(hit.score), "accent")), hit.heading ? h("p", { class: "hint" }, hit.heading.trim()) : null, h("p", { class: "text" }, hit.text))));
    } catch (error) {
      put(results, failure(error, run));
    }
  }
  return h("div", { class: "card" }, h("h2", {}, "Query"), h("form", { onsubmit: (event) => { event.preventDefault(); run(); } }, field("Look for", query),
    h("div", { class: "pair" }, field("Find by", mode), field("Most passages", most)), filter.root, h("div", { class: "row" }, h("button", { type: "submit" }, "Find"))), results);
}

function browseForm(path, say, fail, changed) {
  const filter = filterField(), shown = h("div", {});
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => read(true) }, "More");
  const total = h("p", { class: "hint", "aria-live": "polite" });
  let after = null;
  async function read(on = false) {
    const chosen = filter.read();
    const which = chosen ? { filter: chosen } : {};
    try {
      const page = await ask("POST", `${path}/documents/scroll`, { limit: PAGE_DOCUMENTS, ...which, ...(on ? { after } : {}) });
      if (!on) {
        const { documents, passages } = await ask("POST", `${path}/documents/count`, which);
        total.textContent = `${count(documents, "document")}, ${count(passages, "passage")}`;
        shown.replaceChildren();
      }
      after = page.next;
      more.hidden = !after;
      shown.append(...page.documents.map(item));
    } catch (error) {
      put(total, failure(error, () => read(on)));
    }
  }
  function item(document_) {
    const text = document_.text || "(vectors alone: it has no text)";
    const card = h("details", {}, h("summary", {}, h("span", { class: "mono" }, document_.id), h("span", { class: "muted" }, ` ${text.slice(0, 90).replaceAll("\n", " ")}`)), h("p", {}, text),
      h("pre", { class: "hint" }, JSON.stringify(document_.metadata, null, 1)), h("button", { type: "button", class: "danger small", onclick: remove }, "Delete this document"));
    async function remove() {
      if (!confirm(`Delete ${document_.id}?`)) return;
      try {
        const { deleted } = await ask("POST", `${path}/documents/delete`, { ids: [document_.id] });
        say(deleted ? `${document_.id} is deleted.` : `${document_.id} was gone already.`);
        card.remove();
        changed();
      } catch (error) {
        fail(error);
      }
    }
    return card;
  }
  const card = h("details", { class: "card" }, h("summary", {}, "Browse its documents"), h("form", { onsubmit: (event) => { event.preventDefault(); read(); } }, filter.root, h("div", { class: "row" }, h("button", { type: "submit", class: "quiet" }, "Show"))), total, shown, more);
  card.addEventListener("toggle", () => { if (card.open && !shown.children.length) read(); });
  return { root: card };
}

/** Snapshots and the rebuild. */
function keepForms(name, path, say, fail, changed) {
  const snapshots = h("div", {}), progress = h("div", { "aria-live": "polite" });
  const encoder = select([["", "its own, anew"]]), kind = select([["", "as it is"], "flat", "hnsw", "ivf_pq"]);
  let timer = null, most = 0;
  const act = (work, words) => async () => {
    try {
      say(words(await work()));
      changed();
    } catch (error) {
      fail(error);
    }
    refresh();
  };
  const begin = act(() => ask("POST", `${path}/rebuild`, { ...(encoder.value ? { encoder: encoder.value } : {}), ...(kind.value ? { kind: kind.value } : {}) }), () => "The rebuild has begun; the index serves meanwhile.");

  async function refresh() {
    const [listed, models] = await Promise.allSettled([ask("GET", `${path}/snapshots`), ask("GET", "/v1/models")]);
    if (models.status === "fulfilled") setOptions(encoder, [["", "its own, anew"], ...models.value.data.filter((model) => model.kind === "encoder" && !model.alias_of).map(({ id }) => id)]);
    if (listed.status === "rejected") put(snapshots, listed.reason.status === 404 ? "" : failure(listed.reason, refresh));
    else put(snapshots, listed.value.data.length ? table(["made", "#documents", "#size", "encoder", "actions"], listed.value.data.map((item) => [when(item.created), item.documents.toLocaleString("en"), bytes(item.bytes), item.encoder,
      h("span", { class: "row" }, h("button", { type: "button", class: "quiet small", "aria-label": `Restore ${item.id}`, onclick: () => restore(item) }, "Restore"), h("button", { type: "button", class: "danger small", "aria-label": `Delete ${item.id}`, onclick: () => remove(item) }, "Delete"))]))
      : h("p", { class: "muted" }, "None yet."), ...Object.entries(listed.value.refused).map(([id, reason]) => h("p", { class: "bad" }, `${id} can't be used: ${reason}`)));
    if (rebuilding.open) follow();
  }
  const restore = (item) => {
    const into = prompt(`Restore it under which name? ${name} itself loses what was written since.`, `${name}-old`);
    if (into) act(() => ask("POST", `${path}/snapshots/${item.id}/restore`, into === name ? {} : { into }), (made) => `${made.name} is as it was, with ${count(made.documents, "document")}.`)();
  };
  const remove = (item) => { if (confirm("Delete this snapshot?")) act(() => ask("DELETE", `${path}/snapshots/${item.id}`), () => "The snapshot is deleted.")(); };

  async function follow() {
    clearTimeout(timer);
    let state;
    try {
      state = await ask("GET", `${path}/rebuild`);
    } catch {
      progress.replaceChildren(); // none was ever asked for
      return;
    }
    most = Math.max(most, state.pending, state.documents);
    const running = state.state === "running";
    put(progress, running ? h("div", {}, h("progress", { max: most || 1, value: most - state.pending, "aria-label": "Rebuild" }), h("p", { class: "hint" }, `For ${state.encoder}: ${count(state.pending, "document")} to go.`),
      h("button", { type: "button", class: "danger small", onclick: act(() => ask("DELETE", `${path}/rebuild`), () => "The rebuild is given up; the index is as it was.") }, "Give it up"))
      : state.state === "done" ? done(`Rebuilt for ${state.encoder}`, state.overlap === null ? "." : `: of what the old index found, the new one finds ${(100 * state.overlap).toFixed(0)}% among ten.`)
        : h("div", { class: "failure" }, `The last rebuild failed: ${state.reason}`));
    if (running) timer = setTimeout(follow, POLL_MS);
    else if (most && state.state === "done") most = 0;
  }
  // Its state is asked for once it is wanted: 404, where there never was one, is a fault in a browser's eyes.
  const rebuilding = h("details", { class: "card" }, h("summary", {}, "Rebuild, also for another encoder"), h("p", { class: "muted" }, "Embeds all its texts again, beside it, and takes its place in one step."),
    h("div", { class: "pair" }, field("Encoder", encoder), field("Kind", kind)), progress, h("div", { class: "row" }, h("button", { type: "button", onclick: begin }, "Rebuild")));
  rebuilding.addEventListener("toggle", () => { if (rebuilding.open) follow(); });
  const root = h("div", { class: "halves" },
    h("div", { class: "card" }, h("div", { class: "row spread" }, h("h2", {}, "Snapshots"), h("button", { type: "button", class: "quiet small", onclick: act(() => ask("POST", `${path}/snapshots`), (made) => `A snapshot is made, of ${bytes(made.bytes)}.`) }, "Make one")), snapshots),
    rebuilding);
  return { root, refresh, close: () => clearTimeout(timer) };
}
