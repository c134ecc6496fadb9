// An answer as it is shown: words, passages with the citation marked, compression, times; and two of them side by side.
import { ask, nameInPath } from "./api.js";
import { waterfall } from "./charts.js";
import { count, facts, failure, flops, h, millis, put, score, tag } from "./dom.js";

const FINISH = { stop: ["complete", "good"], length: ["cut at its most tokens", "warn"], not_found: ["not found", "warn"] };
const STATUS = { applied: ["compressed", "accent"], partial: ["compressed in part", "warn"], fallback: ["read as text: compression failed", "bad"], off: ["read as plain text", ""] };

/** A view that takes the events of a streamed answer to `request`. */
export function answerView(request) {
  const words = h("p", { class: "answer waiting", "aria-live": "polite" });
  const tags = h("p", { class: "row" });
  const passages = h("div", {}), cost = h("div", {}), times = h("div", {});
  const root = h("div", { class: "stack" }, h("div", { class: "card" }, words, tags), h("div", { class: "halves" }, cost, times), passages);
  return {
    root,
    take(event, data) {
      if (event === "search_results") {
        put(passages, passageCards(data.data.citations, data.data.compression, request));
        put(cost, costCard(data.data.compression));
      }
      if (event === "message") words.append(data.delta.content.map((part) => part.payload.value).join(""));
      if (event === "final_answer") {
        words.classList.remove("waiting");
        words.textContent = data.generated_answer;
        put(tags, ...answerTags(data));
        put(passages, snippetCard(data.snippets), passageCards(data.citations, data.compression, request));
        put(cost, costCard(data.compression, data.usage));
        put(times, timesCard(data.timings));
      }
    },
  };
}

function answerTags(answer) {
  const [finish, kind] = FINISH[answer.finish_reason] || [answer.finish_reason, ""];
  return [tag(finish, kind),
    answer.grounded === true ? tag("stands in a passage read", "good") : null,
    answer.grounded === false ? tag("does not stand so in the passages", "warn") : null,
    tag(answer.generator ? `written by ${answer.generator}, ranked by ${answer.model}` : answer.model)].filter(Boolean);
}

/** Parts of an answer's time, one after the other. */
function timeParts(times) {
  const before = times.retrieve_ms + times.queue_ms + times.tokenize_ms + times.compress_ms;
  const first = Math.max(0, times.ttft_ms - before);
  return [["retrieve", times.retrieve_ms], ["queue", times.queue_ms], ["tokenise", times.tokenize_ms], ["compress", times.compress_ms],
    ["first token", first], ["rest", Math.max(0, times.total_ms - before - first)]];
}

function timesCard(times) {
  return h("div", { class: "card" }, h("h2", {}, "Time"), waterfall(timeParts(times), times.total_ms),
    h("p", { class: "hint" }, `First token after ${millis(times.ttft_ms)}; generating took ${millis(times.generate_ms)} of computing.`));
}

function costCard(block, usage) {
  const [status, kind] = STATUS[block.status] || [block.status, ""];
  const parts = [h("h2", { class: "row spread" }, "Compression", tag(status, kind))];
  if (block.docs) {
    parts.push(h("p", {}, `${count(block.tokens_in, "token")} of ${count(block.docs, "passage")} became ${count(block.vectors_out, "vector")}: `,
      h("strong", {}, `${block.ratio.toFixed(1)} tokens a vector`), ". The generator reads the vectors in the tokens' place."));
  }
  if (block.reason) parts.push(h("p", { class: block.status === "off" ? "muted" : "warn" }, block.reason));
  parts.push(facts([["used", flops(block.flops_used)], ["plain text would take", flops(block.flops_plain)],
    [block.flops_saved < 0 ? "more than plain" : "saved", flops(Math.abs(block.flops_saved))],
    block.docs ? ["compressing took", millis(block.compress_ms)] : null,
    usage ? ["positions read", usage.prompt_tokens + usage.context_vectors] : null]));
  if (block.flops_saved < 0) {
    parts.push(h("p", { class: "hint" }, "More than it saved: every passage found is compressed to be scored, and a small generator reads text cheaply. It pays with larger generators, or where more passages are read."));
  }
  return h("div", { class: "card" }, parts);
}

function passageCards(citations, block, request) {
  const title = block.status === "off" ? "Passages read, as text" : "Passages read";
  const card = h("section", { class: "card" }, h("h2", {}, title));
  if (!citations.length) card.append(h("p", { class: "muted" }, "None: no passage was found, or none is relevant enough."));
  for (const item of citations) {
    const asText = block.fallback_docs.includes(item.index);
    card.append(h("div", { class: "passage" },
      h("div", { class: "row spread" }, h("h3", { class: "mono" }, item.id),
        h("span", { class: "row" }, tag(`relevance ${score(item.relevance_score)}`, "accent"), block.status === "off" ? null : tag(asText ? "as text" : "compressed", asText ? "warn" : ""))),
      h("p", { class: "text" }, marked(item.text, item.start, item.answer_start, item.answer_end)),
      h("p", { class: "hint" }, place(item), item.metadata.title ? ` · ${item.metadata.title}` : "")));
  }
  if (block.left_out.length) {
    card.append(h("p", { class: "warn" }, `${count(block.left_out.length, "passage")} left out: ${block.left_out.map((n) => leftOut(n, request)).join("; ")}`));
  }
  if (request.index) card.append(foundList(request, new Set(citations.map(({ id }) => id))));
  return card;
}

const place = (item) => `characters ${item.start} to ${item.end} of ${item.document_id}`
  + (item.answer_start === null || item.answer_start === undefined ? "" : `; the answer stands at ${item.answer_start} to ${item.answer_end}`);

function leftOut(number, request) {
  const text = request.documents?.[number];
  return text ? `document ${number + 1}, “${text.slice(0, 60)}…”` : `place ${number + 1}`;
}

/** Text with a stretch marked; places count code points, as Python does. */
export function marked(text, start, from, to) {
  if (from === null || from === undefined) return text;
  const letters = Array.from(text);
  const cut = (a, b) => letters.slice(a, b).join("");
  return [cut(0, from - start), h("mark", {}, cut(from - start, to - start)), cut(to - start)];
}

function snippetCard(snippets) {
  if (!snippets?.length) return "";
  return h("section", { class: "card" }, h("h2", {}, "The nearest sentences"),
    h("p", { class: "muted" }, "No passage is relevant enough to answer from. These come nearest:"),
    snippets.map((item) => h("div", { class: "passage" }, h("div", { class: "row spread" }, h("h3", { class: "mono" }, item.document_id), tag(`relevance ${score(item.relevance_score)}`)),
      h("p", { class: "text" }, item.text), h("p", { class: "hint" }, place(item)))));
}

/** What the index's search finds for the question, asked for when it is opened. */
function foundList(request, read) {
  const list = h("div", {});
  const details = h("details", {}, h("summary", {}, "All that the search found"), list);
  async function load() {
    const { name, top_k, mode } = request.index;
    try {
      const { results } = await ask("POST", `/v1/indexes/${nameInPath(name)}/query`, { query: request.query, top_k, ...(mode ? { mode } : {}) });
      put(list, ...results.map((hit, i) => h("div", { class: "passage brief" },
        h("div", { class: "row spread" }, h("h3", { class: "mono" }, `${i + 1}. ${hit.id}`), h("span", { class: "row" }, tag(`search ${hit.score.toFixed(3)}`), read.has(hit.id) ? tag("read", "accent") : null)),
        h("p", { class: "text" }, hit.text.length > 220 ? `${hit.text.slice(0, 220)}…` : hit.text))));
    } catch (error) {
      put(list, failure(error, load));
    }
  }
  details.addEventListener("toggle", () => { if (details.open && !list.children.length) load(); });
  return details;
}

/** Cards of a comparison: what differs, and both answers. */
export function compareView(comparison, request) {
  const { compressed, plain, agreement } = comparison;
  const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(0)}%`);
  const side = (title, answer) => h("section", { class: "stack" }, h("div", { class: "card" }, h("h2", {}, title), h("p", { class: "answer" }, answer.answer), h("p", { class: "row" }, answerTags(answer))),
    costCard(answer.compression, answer.usage), timesCard(answer.timings), snippetCard(answer.snippets), passageCards(answer.citations, answer.compression, { ...request, index: undefined }));
  return [
    h("section", { class: "card" }, h("h2", {}, "Compressed beside plain"),
      facts([["the same answer", agreement.exact ? "yes" : "no"], ["words in common (F1)", percent(agreement.f1)], ["likeness of meaning (cosine)", agreement.cosine === null ? "–" : agreement.cosine.toFixed(2)],
        ["plain ÷ compressed time", `${comparison.speedup.toFixed(2)} ×`], ["of the generator alone", `${comparison.generator_speedup.toFixed(2)} ×`], [comparison.flops_saved < 0 ? "compression took more" : "compression saved", flops(Math.abs(comparison.flops_saved))]]),
      h("p", {}, h("strong", {}, comparison.pays ? "Compression pays here. " : "Compression does not pay here. "), comparison.why),
      h("p", { class: "hint" }, "The same question and passages, answered one after the other: from memory vectors, and from the passages' own text.")),
    h("div", { class: "halves" }, side("From vectors", compressed), side("From plain text", plain)),
  ];
}
