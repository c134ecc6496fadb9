// The frame: which page is shown at which address, the API key, and whether the server replies.
// Pages are made once and kept, so that going to another page and back loses nothing.
import { ask, events, key } from "./api.js";
import { askPage } from "./ask.js";
import { h } from "./dom.js";
import { indexesPage } from "./indexes.js";
import { livePage } from "./live.js";
import { modelsPage } from "./models.js";
import { embedPage } from "./vectors.js";

const PROBE_SECONDS = 15;

const PAGES = { "": askPage, embed: embedPage, indexes: indexesPage, models: modelsPage, live: livePage };

const main = document.getElementById("main");
const made = new Map();
let shown = null;

function show(focus) {
  const [name, ...rest] = location.pathname.replace(/^\/(console\/?)?/, "").replace(/\/$/, "").split("/").map(decodeURIComponent);
  const page = made.get(name) || make(name);
  if (shown && shown !== page) {
    shown.root.hidden = true;
    shown.hide?.();
  }
  page.root.hidden = false;
  shown = page;
  page.show?.(...rest);
  document.title = `${page.title} · Condensery`;
  for (const link of document.querySelectorAll("nav [data-page]")) {
    const here = link.getAttribute("href") === (name ? `/console/${name}` : "/");
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) {
    scrollTo(0, 0);
    page.root.querySelector("h1")?.focus();
  }
}

function make(name) {
  const root = h("div", { class: "page" });
  const page = { root, ...(PAGES[name] || missingPage)(root) };
  root.querySelector("h1")?.setAttribute("tabindex", "-1");
  main.append(root);
  made.set(name, page);
  return page;
}

function missingPage(root) {
  root.append(h("h1", {}, "No such page"), h("p", {}, "The pages are in the line above."));
  return { title: "No such page" };
}

/** Go to a page of the console; used by links and by pages themselves. */
export function goTo(address, { replace = false } = {}) {
  if (address !== location.pathname) history[replace ? "replaceState" : "pushState"](null, "", address);
  show(!replace);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-page]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  goTo(new URL(link.href).pathname);
});
document.addEventListener("go", (event) => goTo(event.detail));
addEventListener("popstate", () => show(true));

// The API key

const dialog = document.getElementById("key-dialog");
const keyField = document.getElementById("key-field");
const keyButton = document.getElementById("key-button");

function showKey() {
  keyButton.textContent = key.get() ? "API key: set" : "API key";
}
function openKey(why) {
  document.getElementById("key-why").textContent = why;
  keyField.value = "";
  if (!dialog.open) dialog.showModal();
  keyField.focus();
}
function setKey(value) {
  key.set(value);
  dialog.close();
  showKey();
  for (const page of made.values()) page.refresh?.();
}
keyButton.addEventListener("click", () => openKey("Where a server has keys, every request of this console needs one."));
document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(keyField.value.trim());
});
document.getElementById("key-forget").addEventListener("click", () => setKey(""));
document.getElementById("key-cancel").addEventListener("click", () => dialog.close());
events.addEventListener("need-key", (event) => openKey(event.detail.wrong
  ? "The server does not know the key of this tab. Another one?"
  : "This server wants a key. Who runs it has one; it is what clients send as “Authorization: Bearer …”."));

// Whether the server replies

const state = document.getElementById("server");
function showState(text, kind) {
  state.className = kind;
  if (state.textContent !== text) state.textContent = text;
}
async function probe() {
  try {
    const response = await fetch("/readyz", { cache: "no-store" });
    const reply = await response.json();
    if (response.ok) {
      showState("ready", "good");
      notice("server", "");
    } else showState(`not ready: ${reply.error?.message || response.status}`, "bad");
  } catch {
    events.dispatchEvent(new Event("no-server"));
  }
}
events.addEventListener("no-server", () => {
  showState("no reply", "bad");
  notice("server", `No reply from ${location.host}. The server is down or restarting, or the network is; what stands here is kept, and it is asked again every ${PROBE_SECONDS} s.`);
});
events.addEventListener("answered", () => { if (state.textContent === "no reply") probe(); });
setInterval(() => { if (!document.hidden) probe(); }, PROBE_SECONDS * 1000);

// Lines under the head: one of each kind

const notices = new Map();
export function notice(kind, text) {
  notices.get(kind)?.remove();
  notices.delete(kind);
  if (!text) return;
  const line = h("div", { class: "notice" }, h("span", {}, text),
    h("button", { type: "button", class: "quiet small", onclick: () => notice(kind, "") }, "Close"));
  notices.set(kind, line);
  document.getElementById("notices").append(line);
}
events.addEventListener("written", (event) => {
  const { what, name, elsewhere } = event.detail;
  for (const page of made.values()) page.written?.(what, name, elsewhere);
  if (elsewhere) notice("elsewhere", `Another tab changed ${what} ${name}; the lists here are read again. What you have typed is kept.`);
});

showKey();
probe();
show(false);
ask("GET", "/version").then(({ version }) => { document.querySelector(".brand").title = `Condensery ${version}`; }, () => {});
