// A filter of documents: rows of field, comparison and value, as the routes take it.
import { h, select } from "./dom.js";

const TESTS = [["is", "is"], ["any", "is one of"], ["except", "is none of"], ["gte", "is at least"], ["lte", "is at most"], ["id", "has the id"]];

/** A fieldset of conditions that all must hold, and `read()`, which gives the filter or null. */
export function filterField() {
  const rows = h("div", {});
  const add = () => {
    const name = h("input", { type: "text", "aria-label": "Field of the metadata", placeholder: "field, such as file.name" });
    const test = select(TESTS, "is", { "aria-label": "Comparison" });
    const value = h("input", { type: "text", "aria-label": "Value", placeholder: "value" });
    const row = h("div", { class: "filter" }, name, test, value, h("button", { type: "button", class: "quiet small", "aria-label": "Remove this condition", onclick: () => row.remove() }, "×"));
    test.addEventListener("change", () => { name.hidden = test.value === "id"; });
    rows.append(row);
    name.focus();
  };
  const root = h("fieldset", {}, h("legend", {}, "Only documents whose metadata"), rows, h("button", { type: "button", class: "quiet small", onclick: add }, "Add a condition"));
  const read = () => {
    const must = [...rows.children].map((row) => {
      const [name, test, value] = row.querySelectorAll("input, select");
      return condition(name.value.trim(), test.value, value.value.trim());
    }).filter(Boolean);
    return must.length ? { must } : null;
  };
  return { root, read };
}

function condition(key, test, text) {
  if (test === "id") return text ? { has_id: split(text) } : null;
  if (!key) return null;
  if (test === "is") return { key, match: { value: typed(text) } };
  if (test === "gte" || test === "lte") return { key, range: { [test]: Number(text) } };
  return { key, match: { [test]: split(text).map(typed) } };
}
const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
// What is written as a number or a truth value is one; quoted, it is text.
function typed(text) {
  if (/^-?\d+(\.\d+)?$/.test(text)) return Number(text);
  if (text === "true" || text === "false") return text === "true";
  return text.replace(/^"(.*)"$/, "$1");
}
