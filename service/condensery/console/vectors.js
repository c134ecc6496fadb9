// Embed and rerank: a matrix of similarities by two encoders, and lists ranked by what ranks.
import { ask, askWhole } from "./api.js";
import { matrix } from "./charts.js";
import { done, facts, failure, field, h, millis, put, score, select, setOptions, table, tag } from "./dom.js";

const TEXTS = ["The Danube flows into the Black Sea.", "A river ends where it meets the sea.", "Mendel crossed pea plants.", "Inheritance was studied with peas.", "The bridge of Porto is made of iron."];
const QUERY = "Which river reaches the Black Sea?";

export function embedPage(root) {
  const texts = h("textarea", { rows: 8, spellcheck: "true", required: true });
  texts.value = TEXTS.join("\n");
  const query = h("input", { type: "text", value: QUERY });
  const first = select([]), second = select([]), ranker = select([]);
  const compare = h("button", { type: "submit" }, "Compare the texts");
  const rank = h("button", { type: "button", class: "quiet" }, "Rank them for the query");
  const result = h("section", { class: "stack", "aria-label": "Result" }, h("div", { class: "card empty" }, "Similarities and ranked lists appear here."));
  const form = h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); run(similarities); } },
    field("Texts, one a line", texts), field("Query, for a ranked list", query),
    field("Encoder", first), field("Beside it", second, "A compressed child beside its parent: how alike are their answers, and what does each take?"),
    field("Reranker", ranker), h("div", { class: "row" }, compare, rank));
  rank.addEventListener("click", () => { if (form.reportValidity()) run(rankings); });
  root.append(h("h1", {}, "Embed and rerank"),
    h("p", { class: "lead" }, "An encoder makes a vector of a text; the cosine of two says how alike they are. A reranker reads query and text together."),
    h("div", { class: "columns" }, form, result));

  const lines = () => texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
  const encoders = () => [first.value, second.value].filter((name, i, all) => name && all.indexOf(name) === i);

  async function run(work) {
    compare.disabled = rank.disabled = true;
    result.setAttribute("aria-busy", "true");
    try {
      put(result, ...await work(lines()));
    } catch (error) {
      result.prepend(h("div", { class: "card" }, failure(error, () => run(work))));
    } finally {
      compare.disabled = rank.disabled = false;
      result.removeAttribute("aria-busy");
    }
  }

  async function similarities(items) {
    const all = [];
    for (const name of encoders()) {
      const reply = await embed(name, items);
      all.push({ name, reply, values: reply.vectors.map((a) => reply.vectors.map((b) => cosine(a, b))) });
    }
    const cards = all.map(({ name, reply, values }) => h("div", { class: "card" }, h("h2", {}, name), matrix(items, values, `Cosine of each two texts, by ${name}`), costs(reply)));
    return [all.length > 1 ? agreement(all) : null, h("div", { class: "halves" }, cards)].filter(Boolean);
  }

  async function rankings(items) {
    const lists = [];
    if (ranker.value) {
      const { data, ms } = await askWhole("POST", "/v1/rerank", { model: ranker.value, query: query.value, documents: items });
      lists.push([ranker.value, "reranker", data.results.map(({ index, relevance_score }) => [index, relevance_score]), `round trip ${millis(ms)}`]);
    }
    for (const name of encoders()) {
      const { vectors: [wanted] } = await embed(name, [query.value], "search_query");
      const { vectors, whole } = await embed(name, items, "search_document");
      const ranked = vectors.map((vector, i) => [i, cosine(wanted, vector)]).sort((a, b) => b[1] - a[1]);
      lists.push([name, "encoder, by cosine", ranked, `texts embedded in ${millis(whole)}`]);
    }
    const place = new Map(lists[0]?.[2].map(([i], at) => [i, at]));
    return [h("div", { class: "halves" }, lists.map(([name, kind, ranked, time], number) => h("div", { class: "card" },
      h("h2", { class: "row spread" }, name, tag(kind)),
      table(["#", "text", "#score", ...(number ? ["#moved"] : [])], ranked.map(([i, value], at) => [String(at + 1), items[i], score(value), ...(number ? [moved(place.get(i) - at)] : [])]), `Ranked for “${query.value}”`),
      h("p", { class: "hint" }, time))))];
  }

  async function refresh() {
    try {
      const [{ data }, { capabilities }] = await Promise.all([ask("GET", "/v1/models"), ask("GET", "/info")]);
      const models = data.filter(({ kind }) => kind === "encoder").map((model) => [model.id, model.method === "none" ? model.id : `${model.id} (${model.method})`]);
      setOptions(first, models, first.value || models[0]?.[0]);
      setOptions(second, [["", "none"], ...models], second.value || data.find(({ kind, method }) => kind === "encoder" && method !== "none" && method !== "llm2comp")?.id);
      setOptions(ranker, [["", "none"], ...capabilities.rerank], ranker.value || capabilities.rerank[0]);
    } catch (error) {
      result.prepend(h("div", { class: "card" }, failure(error, () => { result.firstChild.remove(); refresh(); })));
    }
  }
  refresh();
  return { title: "Embed and rerank", refresh: () => { result.querySelector(".failure")?.parentNode.remove(); refresh(); }, written: (what) => { if (what === "model") refresh(); } };
}

const moved = (steps) => (steps === 0 ? "same" : steps > 0 ? `↑ ${steps}` : `↓ ${-steps}`);

/** Vectors of texts, and the times that the reply's headers have (milliseconds). */
async function embed(model, input, input_type) {
  const { data, headers, ms } = await askWhole("POST", "/v1/embeddings", { model, input, ...(input_type ? { input_type } : {}) });
  const part = (name) => Number(headers.get(name));
  return { vectors: data.data.map(({ embedding }) => embedding), tokens: data.usage.total_tokens, round: ms,
    whole: part("x-total-time"), tokenising: part("x-tokenization-time"), waiting: part("x-queue-time"), computing: part("x-inference-time") };
}

const costs = (reply) => facts([["dimensions", reply.vectors[0].length], ["tokens read", reply.tokens], ["computing", millis(reply.computing)], ["waiting", millis(reply.waiting)],
  ["tokenising", millis(reply.tokenising)], ["in the server", millis(reply.whole)], ["round trip", millis(reply.round)]]);

function cosine(a, b) {
  let dot = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i += 1) { dot += a[i] * b[i]; aa += a[i] * a[i]; bb += b[i] * b[i]; }
  return dot / (Math.sqrt(aa * bb) || 1);
}

function agreement([one, other]) {
  const pairs = [];
  one.values.forEach((row, i) => row.forEach((value, j) => { if (j > i) pairs.push([value, other.values[i][j]]); }));
  if (!pairs.length) return done("One text has nothing to be compared with: add another line.");
  const apart = pairs.reduce((sum, [a, b]) => sum + Math.abs(a - b), 0) / pairs.length;
  const nearest = (values, i) => values[i].reduce((best, value, j) => (j !== i && (best < 0 || value > values[i][best]) ? j : best), -1);
  const same = one.values.filter((_, i) => nearest(one.values, i) === nearest(other.values, i)).length;
  return h("div", { class: "card" }, h("h2", {}, `${one.name} beside ${other.name}`),
    facts([["cosines differ by, on average", apart.toFixed(3)], ["same nearest text", `${same} of ${one.values.length}`],
      ["computing, first ÷ second", other.reply.computing ? `${(one.reply.computing / other.reply.computing).toFixed(2)} ×` : "–"]]),
    h("p", { class: "hint" }, "One request each: times vary with what else the server does. The page Models has the measured ones."));
}
