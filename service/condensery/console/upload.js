// Files into an index: dropped or chosen, sent one after the other with a bar; what can't be read is listed, the rest is kept.
import { sendForm } from "./api.js";
import { bytes, count, done, failure, field, h, table, tag } from "./dom.js";

const KINDS = "Markdown, HTML, Word, PDF, text, JSON, JSON lines, CSV and TSV.";

/** A form that writes files to the index at `path`; `changed` is called after each that was written. */
export function uploadForm(path, changed) {
  const chosen = h("input", { type: "file", multiple: true, id: "upload-files" });
  const folder = h("input", { type: "file", webkitdirectory: true, multiple: true, id: "upload-folder" });
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Files sent" });
  const state = h("p", { class: "hint", role: "status" }), results = h("div", {});
  const stop = h("button", { type: "button", class: "quiet small", onclick: () => control?.abort() }, "Stop");
  const running = h("div", { hidden: true }, bar, h("div", { class: "row spread" }, state, stop));
  let control = null;
  const options = { encoding: h("input", { type: "text", placeholder: "utf-8" }), id_column: h("input", { type: "text", placeholder: "id or _id" }), text_column: h("input", { type: "text", placeholder: "text" }) };
  const reading = h("details", {}, h("summary", {}, "How to read them"), h("div", { class: "pair" }, field("Encoding of text files", options.encoding), field("Column of ids, in tables", options.id_column), field("Column of texts", options.text_column)));

  const drop = h("div", { class: "drop" }, h("p", {}, "Drop files or folders here"), h("label", { for: "upload-files" }, "or choose files"), chosen, h("label", { for: "upload-folder" }, "or a folder"), folder,
    h("p", { class: "hint" }, `${KINDS} A file that comes again replaces what it was.`));
  chosen.addEventListener("change", () => send([...chosen.files].map((file) => [file.name, file])));
  folder.addEventListener("change", () => send([...folder.files].map((file) => [file.webkitRelativePath || file.name, file])));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    // The entries are to be had now; reading them takes longer than the event lives.
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    send((await Promise.all(entries.map(walk))).flat());
  });

  async function send(files) {
    if (!files.length) return;
    if (control) {
      results.prepend(done("Others are being sent: add these when they are through."));
      return;
    }
    control = new AbortController();
    running.hidden = false;
    results.replaceChildren();
    const total = files.reduce((sum, [, file]) => sum + file.size, 0) || 1;
    const told = [];
    let before = 0, written = 0;
    try {
      for (const [number, [name, file]] of files.entries()) {
        const head = `${number + 1} of ${files.length}: ${name}`;
        state.textContent = `${head} (${bytes(file.size)})`;
        const form = new FormData();
        for (const [option, input] of Object.entries(options)) if (input.value.trim()) form.append(option, input.value.trim());
        form.append("files", file, name);
        const reply = await sendForm(`${path}/files`, form, (share) => {
          bar.value = (before + share * file.size) / total;
          if (share === 1) state.textContent = `${head}: sent, being read and embedded`;
        }, control.signal);
        before += file.size;
        bar.value = before / total;
        told.push(...reply.files);
        written += reply.documents;
        changed();
      }
      const unread = told.filter(({ reason }) => reason).length;
      results.append(done(`${count(written, "document")} written of ${count(files.length, "file")}${unread ? `; ${unread} of them could not be read, or not all of it` : ""}.`));
    } catch (error) {
      const kept = told.length ? ` ${count(told.length, "file")} before it went well; send the rest again, and what is there is passed over.` : "";
      if (error.name === "AbortError") results.append(done(`Stopped.${kept}`));
      else {
        error.message += kept;
        results.append(failure(error, () => send(files)));
      }
    } finally {
      control = null;
      running.hidden = true;
      chosen.value = folder.value = "";
      if (told.length) results.append(table(["file", "#documents", "what became of it"], told.map(outcome)));
    }
  }
  return { root: h("div", {}, drop, reading, running, results), busy: () => Boolean(control) };
}

const outcome = ({ name, documents, unchanged, reason }) => [h("span", { class: "mono" }, name), documents,
  reason ? h("span", { class: "bad" }, `not read: ${reason}`) : documents ? tag("written", "good") : tag(unchanged ? "as it was" : "empty")];

/** The files of a dropped entry, with their paths. */
async function walk(entry) {
  if (entry.isFile) return [[entry.fullPath.replace(/^\//, ""), await new Promise((resolve, reject) => entry.file(resolve, reject))]];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.filter(({ name }) => !name.startsWith(".")).map(walk))).flat();
}
