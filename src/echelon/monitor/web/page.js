"use strict";
// Draws what the server sends. All that comes from a run is text, and stays text.

const $ = (id) => document.getElementById(id);
const WORST = 50; // rows of ranks that are shown
const COLUMNS = 120; // seconds of the map
let source = null, shown = "", last = null, logsDue = 0, columns = [];

const put = (place, text, kind) => {
  const made = document.createElement(kind);
  made.textContent = text;
  place.append(made);
  return made;
};
const rows = (table, lines) => {
  const body = table.tBodies[0];
  body.replaceChildren();
  for (const {cells, kind} of lines) {
    const row = body.insertRow();
    if (kind) row.className = kind;
    for (const cell of cells) put(row, cell, "td");
  }
};
const percent = (share) => share == null ? "" : `${Math.round(100 * share)} %`;
const amount = (bytes) => {
  if (bytes == null) return "";
  for (const unit of ["B", "KB", "MB", "GB"]) { if (Math.abs(bytes) < 1000) return `${Math.round(bytes * 10) / 10} ${unit}`; bytes /= 1000; }
  return `${Math.round(bytes * 10) / 10} TB`;
};
const number = (value, digits = 2) => value == null ? "" : value.toLocaleString("en", {maximumFractionDigits: digits});
const clock = (time) => time ? new Date(1000 * time).toLocaleString() : "";
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const layout = (more) => ({
  margin: {l: 55, r: 15, t: 8, b: 40}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: {color: style("--faint"), size: 12}, showlegend: false,
  xaxis: {gridcolor: style("--line"), zerolinecolor: style("--line")},
  yaxis: {gridcolor: style("--line"), zerolinecolor: style("--line")}, ...more});
const plot = (id, data, more) => Plotly.react(id, data, layout(more), {displayModeBar: false, responsive: true});

function drawFacts(run) {
  $("name").textContent = run.run;
  document.title = `${run.run}: ${run.phase}`;
  $("phase").textContent = run.phase;
  $("phase").className = `badge ${run.phase}`;
  const facts = {step: run.step >= 0 ? number(run.step) : "", ranks: run.ranks.length,
    effective: percent(run.effective), attempts: run.attempts.length};
  $("facts").replaceChildren();
  for (const [name, value] of Object.entries(facts)) {
    if (value === "") continue;
    const pair = document.createElement("div");
    put(pair, name, "dt");
    put(pair, value, "dd");
    $("facts").append(pair);
  }
  const failure = run.verdict && run.verdict.failure;
  $("verdict").hidden = !failure;
  if (failure) {
    const who = failure.rank == null ? "the run" : `rank ${failure.rank}`;
    const where = failure.node ? ` on ${failure.node}` : "";
    $("verdict").querySelector("pre").textContent =
      `${who}${where}: ${failure.message}\ncause: ${failure.cause}\n${failure.traceback || ""}`;
  }
}

function drawMetric(run) {
  const names = Object.keys(run.metrics), choice = $("metric");
  if (names.join() !== [...choice.options].map((one) => one.value).join()) {
    const before = choice.value;
    choice.replaceChildren();
    for (const name of names) put(choice, name, "option").value = name;
    choice.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0] || "";
  }
  const [x, y] = run.metrics[choice.value] || [[], []];
  plot("curve", [{x, y, type: "scatter", mode: "lines", line: {color: style("--blue"), width: 2}}],
    {xaxis: {title: {text: "step"}, gridcolor: style("--line")}});
}

function drawLine(run, now) {
  const bars = run.attempts.flatMap((one) => one.generations.map((g) => ({one, g})));
  plot("line", [{type: "bar", orientation: "h", base: bars.map(({g}) => new Date(1000 * g.began)),
    x: bars.map(({g}) => 1000 * ((g.ended || now) - g.began)), y: bars.map(({one}) => `attempt ${one.number}`),
    text: bars.map(({g}) => `${g.ranks} ranks`), textposition: "inside", insidetextanchor: "middle",
    hovertext: bars.map(({g}) => g.why || "no failure"), hoverinfo: "text",
    width: 0.5, marker: {color: bars.map(({g}) => g.why ? style("--bad") : style("--good")), line: {width: 1, color: style("--card")}}}],
    {xaxis: {type: "date", gridcolor: style("--line")}, margin: {l: 80, r: 15, t: 8, b: 40}});
}

function keepColumns(run) {
  if (run.heat) columns = run.heat;
  for (const one of run.news || []) {
    const place = columns.findIndex((known) => known.time === one.time);
    if (place >= 0) columns[place] = one; else columns.push(one);
  }
  columns.sort((a, b) => a.time - b.time);
  columns = columns.slice(-COLUMNS);
}

function drawMap(run) {
  const kind = $("heat").value, z = run.ranks.map((_, rank) => columns.map((one) => one[kind][rank]));
  plot("map", [{type: "heatmap", x: columns.map((one) => new Date(1000 * one.time)), z, colorscale: "Viridis", zmin: 0,
    hovertemplate: "rank %{y}: %{z}<extra></extra>", colorbar: {thickness: 12}}],
    {yaxis: {title: {text: "rank"}, autorange: "reversed", tickformat: "d", dtick: run.ranks.length < 12 ? 1 : undefined, showgrid: false, zeroline: false},
     xaxis: {type: "date", showgrid: false}});
}

function drawTime(run) {
  const parts = Object.entries(run.seconds).filter(([name, s]) => name !== "queue" && s > 0).sort((a, b) => a[1] - b[1]);
  plot("time", [{type: "bar", orientation: "h", x: parts.map(([, s]) => s), y: parts.map(([name]) => name),
    marker: {color: parts.map(([name]) => name === "productive" ? style("--good") : style("--warm"))}}],
    {margin: {l: 120, r: 15, t: 8, b: 40}, xaxis: {title: {text: run.gpus ? "GPU-seconds" : "rank-seconds"}, gridcolor: style("--line")}});
}

function drawTables(run) {
  rows($("nodes"), run.nodes.map((node) => ({kind: node.here ? "" : "gone", cells: [
    node.here ? node.name : `${node.name} (lost)`, percent(node.numbers.cpu),
    `${amount(node.numbers.mem)} of ${amount(node.numbers.mem_size)}`,
    `${amount(node.numbers.received)}/s`, `${amount(node.numbers.sent)}/s`,
    Object.values(node.gpus).map((gpu) => percent(gpu.util)).join(" ")]})));
  const at = Object.fromEntries(run.fields.map((name, place) => [name, place]));
  const head = $("ranks").tHead.rows[0];
  if (!head.cells.length) for (const name of ["rank", "node", "step", "steps/s", "data", "stall", "memory", "GPU"]) put(head, name, "th");
  const names = Object.fromEntries(run.nodes.map((node) => [node.node, node.name]));
  const worst = [...run.ranks].sort((a, b) => b[at.failed] - a[at.failed] || a[at.alive] - b[at.alive] || a[at.steps] - b[at.steps] || a[0] - b[0]);
  rows($("ranks"), worst.slice(0, WORST).map((rank) => ({
    kind: rank[at.failed] ? "failed" : rank[at.alive] ? "" : "gone", cells: [
      rank[at.rank], names[rank[at.node]] || "", number(rank[at.step]), number(rank[at.steps]), percent(rank[at.data]),
      percent(rank[at.stall]), amount(rank[at.mem]), percent(rank[at.util])]})));
  $("more").textContent = worst.length > WORST ? `and ${worst.length - WORST} more, which are no worse` : "";
}

function draw(run) {
  last = run;
  drawFacts(run);
  drawMetric(run);
  drawLine(run, Date.now() / 1000);
  drawMap(run);
  drawTime(run);
  drawTables(run);
}

async function drawLogs() {
  if (!shown) return;
  const asked = new URLSearchParams({search: $("search").value, rank: $("rank").value});
  const answer = await fetch(`/api/runs/${encodeURIComponent(shown)}/logs?${asked}`);
  if (!answer.ok) return;
  const place = $("logs"), text = (await answer.json()).map(([rank, line]) => `${rank}: ${line}`).join("\n");
  if (place.textContent !== text) place.textContent = text;
  if ($("tail").checked) place.scrollTop = place.scrollHeight;
}

async function drawAll() {
  const answer = await fetch("/api/runs");
  const runs = answer.ok ? await answer.json() : [];
  const choice = $("runs"), before = shown;
  choice.replaceChildren();
  put(choice, "all runs", "option").value = "";
  for (const run of runs) put(choice, run.run, "option").value = run.run;
  choice.value = before;
  $("none").hidden = runs.length > 0;
  const body = $("list").tBodies[0];
  body.replaceChildren();
  for (const run of runs) {
    const row = body.insertRow(), link = document.createElement("a");
    link.textContent = run.run;
    link.href = `#${encodeURIComponent(run.run)}`;
    row.insertCell().append(link);
    for (const cell of [run.phase, run.attempts, run.ranks, run.step >= 0 ? number(run.step) : "", clock(run.began)]) put(row, cell, "td");
  }
}

function open(name) {
  shown = name;
  columns = [];
  if (source) source.close();
  source = null;
  $("all").hidden = Boolean(name);
  $("one").hidden = !name;
  drawAll();
  if (!name) { document.title = "Echelon"; return; }
  source = new EventSource(`/api/runs/${encodeURIComponent(name)}/follow`);
  source.onmessage = (event) => { $("link").textContent = ""; const run = JSON.parse(event.data); keepColumns(run); draw(run); if (Date.now() > logsDue && $("tail").checked) { logsDue = Date.now() + 1500; drawLogs(); } };
  source.onerror = () => { $("link").textContent = "connection lost, trying again"; };
  drawLogs();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  if (last && shown) draw(last);
}

addEventListener("DOMContentLoaded", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(localStorage.getItem("theme") || (dark ? "dark" : "light"));
  $("theme").onclick = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  $("runs").onchange = () => { location.hash = encodeURIComponent($("runs").value); };
  $("metric").onchange = $("heat").onchange = () => last && draw(last);
  $("find").onsubmit = (event) => { event.preventDefault(); drawLogs(); };
  $("search").oninput = $("rank").oninput = drawLogs;
  addEventListener("hashchange", () => open(decodeURIComponent(location.hash.slice(1))));
  open(decodeURIComponent(location.hash.slice(1)));
});
