// A model's card: the Markdown that cards use, as elements. What else there is stays text.
import { h, table } from "./dom.js";

/** Elements of a text; `image(path, words)` makes an image's element. */
export function renderMarkdown(text, image) {
  const parts = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; i += 1) {
    const line = lines[i];
    const heading = line.match(/^(#{1,6})\s+(.*)/);
    if (!line.trim()) continue;
    if (heading) parts.push(h(heading[1].length < 3 ? "h2" : "h3", {}, spans(heading[2], image)));
    else if (line.startsWith("```")) {
      const end = lines.findIndex((other, j) => j > i && other.startsWith("```"));
      parts.push(h("pre", {}, lines.slice(i + 1, end < 0 ? undefined : end).join("\n")));
      i = end < 0 ? lines.length : end;
    } else if (line.startsWith("|") && /^\|[\s:|-]+\|$/.test((lines[i + 1] || "").trim())) {
      const [head, rule, ...rows] = take(lines, i, (other) => other.startsWith("|")).map(cells);
      parts.push(table(head.map((name, j) => (/-:$/.test(rule[j]) ? `#${plain(name)}` : plain(name))), rows.map((row) => row.map((cell) => spans(cell, image)))));
      i += rows.length + 1;
    } else if (/^\s*[-*]\s+/.test(line)) {
      const items = take(lines, i, (other) => /^\s*[-*]\s+/.test(other));
      parts.push(h("ul", {}, items.map((item) => h("li", {}, spans(item.replace(/^\s*[-*]\s+/, ""), image)))));
      i += items.length - 1;
    } else {
      const block = take(lines, i, (other) => other.trim() && !/^(#|\||```|\s*[-*]\s)/.test(other));
      if (!block.length) block.push(line);
      parts.push(h("p", {}, spans(block.join(" "), image)));
      i += block.length - 1;
    }
  }
  return parts;
}

function take(lines, from, belongs) {
  let to = from;
  while (to < lines.length && belongs(lines[to])) to += 1;
  return lines.slice(from, to);
}
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
const plain = (text) => text.replace(/\\([_*|])/g, "$1");

function spans(text, image) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|!?\[[^\]]*\]\([^)\s]+\))/).map((part) => {
    const link = part.match(/^(!?)\[([^\]]*)\]\(([^)\s]+)\)$/);
    if (link) return link[1] ? image(link[3], link[2]) : `${link[2]} (${link[3]})`;
    if (part.startsWith("`") && part.length > 2) return h("code", {}, part.slice(1, -1));
    if (part.startsWith("**") && part.length > 4) return h("strong", {}, part.slice(2, -2));
    return plain(part);
  });
}
