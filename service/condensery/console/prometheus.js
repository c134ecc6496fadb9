// Prometheus' text format, and what the page Live keeps of one reading of it.

/** Read the samples of the families that are wanted: name -> [{labels, value}]. */
export function readMetrics(text, wanted) {
  const found = new Map(wanted.map((name) => [name, []]));
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const brace = line.indexOf("{");
    const space = line.lastIndexOf(" ");
    const samples = found.get(line.slice(0, brace < 0 ? space : brace));
    if (!samples) continue;
    const labels = {};
    for (const [, name, value] of (brace < 0 ? "" : line.slice(brace + 1, line.lastIndexOf("}"))).matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    samples.push({ labels, value: Number(line.slice(space + 1)) });
  }
  return found;
}

const sum = (samples, where = () => true) => samples.reduce((total, { labels, value }) => (where(labels) ? total + value : total), 0);
const HISTOGRAMS = ["condensery_request_duration_seconds_bucket", "condensery_ttft_seconds_bucket"];
const WANTED = ["condensery_requests_total", ...HISTOGRAMS, "condensery_queue_requests", "condensery_queue_tokens",
  "condensery_batch_items_sum", "condensery_batch_items_count", "condensery_batch_tokens_sum", "condensery_input_tokens_total", "condensery_output_tokens_total",
  "condensery_cache_positions", "condensery_sequences", "condensery_model_memory_bytes", "condensery_context_bytes", "condensery_contexts", "condensery_connections",
  "condensery_rejected_total", "condensery_flops_plain_total", "condensery_flops_used_total", "condensery_compressed_docs_total",
  "condensery_context_tokens_in_total", "condensery_context_vectors_out_total", "condensery_compression_fallback_total", "condensery_model_state", "condensery_stage_duration_seconds_sum"];

function buckets(samples) {
  const by = {};
  for (const { labels, value } of samples) by[labels.le] = (by[labels.le] || 0) + value;
  return by;
}

/** One reading, small enough that 15 minutes of them can be kept: sums over all models, and some of each. */
export function readSample(text, time) {
  const all = readMetrics(text, WANTED);
  const of = (name, where) => sum(all.get(`condensery_${name}`), where);
  const errors = {}, models = {};
  for (const { labels, value } of all.get("condensery_requests_total")) if (labels.code !== "ok" && value) errors[labels.code] = (errors[labels.code] || 0) + value;
  for (const { labels, value } of all.get("condensery_model_state")) {
    if (!value) continue;
    const mine = (label) => label.model === labels.model;
    models[labels.model] = { state: labels.state, requests: of("requests_total", mine), input: of("input_tokens_total", mine), output: of("output_tokens_total", mine),
      memory: of("model_memory_bytes", mine), queue: of("queue_requests", mine) };
  }
  const errorCount = Object.values(errors).reduce((a, b) => a + b, 0);
  return {
    time, errors, models, errorCount, requests: of("requests_total"), latency: buckets(all.get(HISTOGRAMS[0])), ttft: buckets(all.get(HISTOGRAMS[1])),
    queue: of("queue_requests"), queueTokens: of("queue_tokens"), items: of("batch_items_sum"), passes: of("batch_items_count"), passTokens: of("batch_tokens_sum"),
    input: of("input_tokens_total"), output: of("output_tokens_total"), cacheUsed: of("cache_positions", (l) => l.state === "used"), cacheLimit: of("cache_positions", (l) => l.state === "limit"),
    running: of("sequences", (l) => l.state === "running"), waiting: of("sequences", (l) => l.state === "waiting"),
    memory: of("model_memory_bytes"), contextBytes: of("context_bytes"), contexts: of("contexts"), connections: of("connections"), rejected: of("rejected_total"),
    plain: of("flops_plain_total"), used: of("flops_used_total"), tokensIn: of("context_tokens_in_total"), vectorsOut: of("context_vectors_out_total"),
    fallbacks: of("compression_fallback_total"), docs: of("compressed_docs_total", (l) => l.status === "applied"),
  };
}

/** A quantile of what was observed between two readings of a histogram, in its unit; null where nothing was. */
export function quantile(before, after, share) {
  const bounds = Object.keys(after).map((text) => [text === "+Inf" ? Infinity : Number(text), after[text] - (before[text] || 0)]).sort((a, b) => a[0] - b[0]);
  const total = bounds.at(-1)?.[1] || 0;
  if (total <= 0) return null;
  let low = 0, under = 0;
  for (const [bound, counted] of bounds) {
    if (counted >= share * total) return bound === Infinity ? low : low + ((bound - low) * (share * total - under)) / (counted - under);
    [low, under] = [bound, counted];
  }
  return low;
}
