// The page: selects the run to show, and redraws the parts that have changed.
import {$, say, put} from "./text.js";
import {drawHead, drawVerdict, drawTime, drawAttempts, drawSaid, drawSaves} from "./panels.js";
import {drawRanks, drawNodes} from "./tables.js";
import * as runs from "./runs.js";
import * as curves from "./curves.js";
import * as map from "./map.js";
import * as logs from "./logs.js";
import * as compare from "./compare.js";
import {borrow, follow, forget, get, known, takeToken} from "./api.js";

const LIST_MS = 4000, OTHERS_MS = 400;
let leave = null, shown = null, run = null, dirty = new Set(), ahead = 0, listed = null, opened = false;

const now = () => Date.now() / 1000 + ahead; // by the server's clock
const all = () => new Set([...Object.keys(run), "columns"]);

// Stores what was received: whole parts, curves by name, and columns of the map.
function take(news) {
  const {curves = {}, columns = [], now: time, took, ...parts} = news;
  run = run || {curves: new Map()}; // not an object, because a metric may be called __proto__
  ahead = time - Date.now() / 1000;
  Object.assign(run, parts);
  for (const [name, curve] of Object.entries(curves)) { run.curves.set(name, curve); dirty.add(`curve ${name}`); }
  map.keep(columns);
  for (const name of Object.keys(parts)) dirty.add(name);
  if (columns.length) dirty.add("columns");
  return took;
}

function draw(force) {
  if (!run || !run.head || document.hidden) return; // a hidden page is not drawn
  const any = (...names) => names.some((name) => dirty.has(name));
  if (any("columns", "ranks")) map.drawMap(run);
  curves.drawCurves(run, dirty, force);
  if (any("head", "columns")) drawHead({head: run.head, speed: map.speeds()[1].at(-1)}, now());
  if (any("verdict")) drawVerdict(run);
  if (any("time")) drawTime(run);
  if (any("attempts", "head")) drawAttempts(run, now());
  if (any("said")) drawSaid(run);
  if (any("checkpoints")) drawSaves(run);
  if (any("ranks", "nodes")) drawRanks(run);
  if (any("nodes")) drawNodes(run);
  dirty = new Set();
}

function hear(data) {
  const began = performance.now(), first = run === null;
  say($("link"), "");
  const server = take(JSON.parse(data));
  draw(false);
  // The run comes first; the other requests may take the server longer.
  if (first) setTimeout(openOthers, OTHERS_MS, shown);
  else openOthers(shown);
  logs.soon();
  const page = performance.now() - began;
  document.dispatchEvent(new CustomEvent("drawn", {detail: {first, server, page, bytes: data.length}}));
}

function openOthers(name) {
  if (opened || name !== shown) return;
  opened = true;
  logs.open(name);
  list();
}

async function list() {
  clearTimeout(listed);
  const answer = await get("/api/runs").catch(() => null);
  if (!known()) return;
  if (answer && answer.ok) {
    const all = await answer.json(), choice = $("runs"), names = ["", ...all.map((one) => one.run)];
    if (shown && !names.includes(shown)) names.push(shown);
    if (names.join("\n") !== [...choice.options].map((one) => one.value).join("\n")) {
      choice.replaceChildren();
      for (const name of names) put(choice, "option", compare.isComparison(name) ? compare.label(name) : name || "All runs").value = name;
    }
    choice.value = shown;
    if (!shown) runs.drawRuns(all, now());
  }
  if (!shown) await listSweeps();
  if (!shown) say($("link"), answer ? "" : "connection lost, reconnecting…");
  if (!shown || !answer) listed = setTimeout(list, LIST_MS);
}

async function listSweeps() {
  const answer = await get("/api/sweeps").catch(() => null);
  if (!answer || !answer.ok) return;
  const names = await answer.json(), place = $("sweeps");
  place.hidden = !names.length;
  place.replaceChildren("Sweeps: ");
  for (const name of names) { put(place, "a", name).setAttribute("href", `#${encodeURIComponent(compare.nameSweep(name))}`); place.append(" "); }
}

function clear(name) {
  shown = name;
  if (leave) leave();
  leave = run = null;
  opened = false;
  dirty = new Set();
  map.clear();
  curves.forget();
  clearTimeout(listed);
  logs.open("");
  compare.open("");
  say($("link"), "");
}

function reveal(id) {
  for (const one of ["all", "one", "sweep", "missing", "locked"]) $(one).hidden = one !== id;
}

function show(name) {
  if (name === shown) return;
  clear(name);
  const compared = compare.isComparison(name);
  reveal(compared ? "sweep" : name ? "one" : "all");
  $("one").classList.add("waiting");
  if (compared) {
    compare.open(name);
    list();
  } else if (name) {
    leave = follow(`/api/runs/${encodeURIComponent(name)}/follow`, {
      hear: (data) => { $("one").classList.remove("waiting"); hear(data); },
      lose: () => say($("link"), "connection lost, reconnecting…"),
      fail: (status) => { if (status === 404) reveal("missing"); },
    });
  } else {
    document.title = "Echelon";
    list();
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (run) { dirty = all(); draw(true); }
}

// Without a valid token, show how to get one.
function lock() {
  forget();
  clear(null);
  reveal("locked");
}

async function begin() {
  if (!takeToken() && !known()) await borrow();
  if (known()) show(wanted());
  else lock();
}

const wanted = () => { try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; } };
const kept = localStorage.getItem("theme"), system = matchMedia("(prefers-color-scheme: dark)");
setTheme(kept || (system.matches ? "dark" : "light"));
system.onchange = () => { if (!localStorage.getItem("theme")) setTheme(system.matches ? "dark" : "light"); };
$("theme").onclick = () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
};
$("runs").onchange = () => { location.hash = encodeURIComponent($("runs").value); };
$("metric").onchange = () => { dirty.add("head"); draw(false); };
$("logs-metric").onchange = () => curves.drawCurves(run, dirty, true);
$("heat").onchange = () => { map.choose($("heat").value); dirty.add("columns"); draw(false); };
$("whose").onclick = () => logs.showRank($("whose").dataset.rank);
$("skip").onclick = (event) => { event.preventDefault(); $("search").focus(); };
curves.listen();
map.listen();
logs.listen();
compare.listen();
runs.listen();
addEventListener("visibilitychange", () => { draw(false); logs.soon(); });
addEventListener("hashchange", () => { if (takeToken()) shown = null; if (known()) show(wanted()); });
addEventListener("borrowed", () => { if (!$("locked").hidden) begin(); });
addEventListener("refused", lock);
begin();
