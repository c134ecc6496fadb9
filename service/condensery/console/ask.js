// Ask: a question of an index or of pasted documents, streamed; compressed beside plain in one click.
import { ask, askStream, events, explain } from "./api.js";
import { answerView, compareView } from "./answer.js";
import { failure, field, h, put, select, setOptions } from "./dom.js";

const EXAMPLE = "How many traits did Mendel study?";

export function askPage(root) {
  const query = h("textarea", { rows: 3, required: true, spellcheck: "true" });
  query.value = EXAMPLE;
  const byIndex = h("input", { type: "radio", name: "source", value: "index", checked: true });
  const byText = h("input", { type: "radio", name: "source", value: "documents" });
  const index = select([], "");
  const mode = select([["", "default"], ["dense", "vectors (dense)"], ["bm25", "words (bm25)"], ["hybrid", "both (hybrid)"]]);
  const topK = h("input", { type: "number", min: 1, max: 1000, value: 20 });
  const documents = h("textarea", { rows: 9, placeholder: "A document.\n\nAnother, after a line of three dashes or a blank line." });
  const model = select([["", "the server's default"]]);
  const topN = h("input", { type: "number", min: 0, placeholder: "as the pair reads best" });
  const compression = select([["auto", "compress, text where that fails"], ["required", "compress or fail"], ["off", "read plain text"]]);
  const relevance = h("input", { type: "number", min: 0, max: 1, step: "any", placeholder: "the pair's own" });
  const tokens = h("input", { type: "number", min: 1, value: 64 });
  const temperature = h("input", { type: "number", min: 0, max: 2, step: "any", value: 0 });

  const ofIndex = h("div", {}, field("Index", index), h("div", { class: "pair" }, field("Found by", mode), field("Passages to find", topK)));
  const ofText = h("div", { hidden: true }, field("Documents", documents, "Blank lines stand between documents. They are not stored."));
  const go = h("button", { type: "submit" }, "Ask");
  const stop = h("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const compare = h("button", { type: "button", class: "quiet" }, "Compare with plain text");
  const result = h("section", { "aria-label": "Answer", class: "stack" }, h("div", { class: "card empty" }, "The answer appears here, with the passages it was read from and what it cost."));
  const form = h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); run(stream); } },
    field("Question", query),
    h("fieldset", {}, h("legend", {}, "Answer from"),
      h("label", { class: "inline" }, byIndex, "an index"), h("label", { class: "inline" }, byText, "pasted documents")),
    ofIndex, ofText,
    h("details", {}, h("summary", {}, "How to answer"),
      field("Pair", model),
      h("div", { class: "pair" }, field("Passages to read", topN), field("Least relevance", relevance)),
      field("Compression", compression, "A compressed passage is read as a few memory vectors instead of its tokens."),
      h("div", { class: "pair" }, field("Most tokens", tokens), field("Temperature", temperature))),
    h("div", { class: "row" }, go, compare, stop));
  root.append(h("h1", {}, "Ask"),
    h("p", { class: "lead" }, "The compressor reads every passage found and scores it; the generator answers from the best, as a few vectors each."),
    h("div", { class: "columns" }, form, result));

  const showSource = () => { ofIndex.hidden = !byIndex.checked; ofText.hidden = byIndex.checked; };
  byIndex.addEventListener("change", showSource);
  byText.addEventListener("change", showSource);
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  function request() {
    const body = { query: query.value, max_tokens: Number(tokens.value) || 64, temperature: Number(temperature.value) || 0, compression: { mode: compression.value } };
    if (byIndex.checked) {
      if (!index.value) throw explain(400, "", "There is no index to ask yet: make one on the page Indexes, or paste documents.");
      body.index = { name: index.value, top_k: Number(topK.value) || 20 };
      if (mode.value) body.index.mode = mode.value;
    } else body.documents = splitDocuments(documents.value);
    if (model.value) body.model = model.value;
    if (topN.value) body.rerank = { top_n: Number(topN.value) };
    if (relevance.value) body.min_relevance = Number(relevance.value);
    return body;
  }

  let control = null;
  stop.addEventListener("click", () => control?.abort());
  compare.addEventListener("click", () => { if (form.reportValidity()) run(both); });
  async function run(work) {
    control?.abort();
    const mine = (control = new AbortController());
    go.disabled = compare.disabled = true;
    stop.hidden = false;
    result.setAttribute("aria-busy", "true");
    try {
      await work(request(), mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") result.prepend(h("div", { class: "card" }, failure(error, () => run(work))));
      else result.prepend(h("div", { class: "card muted" }, "Stopped."));
    } finally {
      result.querySelector(".waiting")?.classList.remove("waiting");
      go.disabled = compare.disabled = false;
      stop.hidden = true;
      result.removeAttribute("aria-busy");
    }
  }

  async function stream(body, signal) {
    const view = answerView(body);
    put(result, view.root);
    for await (const { event, data } of askStream("/v1/rag/answer", { ...body, stream: true }, { signal })) view.take(event, data);
  }

  async function both(body, signal) {
    put(result, h("div", { class: "card" }, h("p", { class: "answer waiting" }), h("p", { class: "muted" }, "Answering twice: from vectors, then from the same passages' text.")));
    put(result, ...compareView(await ask("POST", "/v1/rag/compare", body, { signal }), body));
  }

  async function refresh() {
    try {
      const [{ data: indexes }, { data: aliases }, { data: models }] = await Promise.all(
        ["/v1/indexes", "/v1/indexes/aliases", "/v1/models"].map((path) => ask("GET", path)));
      setOptions(index, [...indexes.map(({ name, documents: held }) => [name, `${name} (${held.toLocaleString("en")} documents)`]),
        ...aliases.map(({ alias, index: name }) => [alias, `${alias} → ${name}`])]);
      setOptions(model, [["", "the server's default"], ...models.filter(({ kind }) => kind === "oscar-pair").map(({ id }) => id)]);
    } catch (error) {
      if (!result.querySelector(".failure")) result.prepend(h("div", { class: "card" }, failure(error, () => { result.firstChild.remove(); refresh(); })));
    }
  }
  function clearFailures() {
    for (const card of result.querySelectorAll(".failure")) card.parentNode.remove();
  }
  events.addEventListener("written", refresh);
  refresh();
  return { title: "Ask", refresh: () => { clearFailures(); refresh(); } };
}

export function splitDocuments(text) {
  const parts = text.split(/\n\s*(?:-{3,}\s*)?\n/).map((part) => part.trim()).filter((part) => part && !/^-{3,}$/.test(part));
  if (!parts.length) throw explain(400, "", "There is no document: paste one, or ask an index.");
  return parts;
}
