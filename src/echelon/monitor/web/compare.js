// Runs side by side, the tasks of a sweep or chosen runs: their table, and their curves over one another.
import {$, say, put, figure, has} from "./text.js";
import {fill, makeOrder, mark, title} from "./tables.js";
import {sketch} from "./curves.js";
import {get} from "./api.js";

const EVERY_MS = 4000, SWEEP = "sweep:", CHOSEN = "compare:"; // no run has a colon or a slash in its name
let shown = "", told = null, turn = null;
const order = makeOrder(() => draw());

const hue = (at, count) => `hsl(${Math.round(360 * at / count)} 70% 50%)`;
const isSweep = (name) => name.startsWith(SWEEP);
const runsOf = (name) => name.slice(CHOSEN.length).split("/");

export const isComparison = (name) => isSweep(name) || name.startsWith(CHOSEN);
export const label = (name) => isSweep(name) ? name.slice(SWEEP.length) : "Comparison";
export const nameSweep = (name) => SWEEP + name;
export const nameComparison = (names) => CHOSEN + names.join("/");

function locate(name) {
  const asked = new URLSearchParams({metric: $("measure").value});
  if (isSweep(name)) return `/api/sweeps/${encodeURIComponent(name.slice(SWEEP.length))}?${asked}`;
  for (const run of runsOf(name)) asked.append("run", run);
  return `/api/compare?${asked}`;
}

async function ask(name) {
  clearTimeout(turn);
  const answer = await get(locate(name)).catch(() => null);
  if (name !== shown) return;
  if (answer && answer.ok) { told = await answer.json(); draw(); }
  say($("link"), answer ? "" : "connection lost, reconnecting…");
  turn = setTimeout(ask, EVERY_MS, name);
}

function draw() {
  const {names, metric, metrics, rows, curves} = told, choice = $("measure");
  const counts = new Map();
  for (const row of rows) counts.set(row.at(-2), (counts.get(row.at(-2)) || 0) + 1);
  say($("counts"), [...counts].map(([state, count]) => `${count} ${state}`).join(", "));
  if (metrics.join("\n") !== [...choice.options].map((one) => one.value).join("\n")) {
    choice.replaceChildren();
    for (const name of metrics) put(choice, "option", name).value = name;
  }
  choice.value = metric;
  choice.parentElement.classList.toggle("bare", !metrics.length);
  const headings = ["run", "state", ...(metric ? [metric] : []), ...names], table = $("tasks");
  const cellsOf = (row) => [row[0], row.at(-2), ...(metric ? [row.at(-1)] : []), ...row.slice(1, -2)];
  title(table, headings, order);
  const ordered = order.sort(rows, headings, (row, at) => cellsOf(row)[at]);
  fill(table, ordered.map((row) => {
    const [, , ...rest] = cellsOf(row);
    if (metric) rest[0] = figure(rest[0]);
    return {cells: ["", "", ...rest]};
  }));
  ordered.forEach((row, at) => {
    const [first, second] = table.tBodies[0].rows[at].cells, link = put(first, "a", row[0]);
    link.setAttribute("href", `#${encodeURIComponent(row[0])}`);
    mark(put(second, "span"), row.at(-2));
    const place = curves.findIndex((curve) => curve.run === row[0]);
    first.style.borderLeftColor = place < 0 ? "transparent" : hue(place, curves.length);
  });
  if (has($("together"), curves.length > 0)) {
    const lines = curves.map(({x, y}, at) => ({x, y, color: hue(at, curves.length)}));
    sketch($("together"), {lines, log: $("logs-measure").checked});
  }
}

export function open(name) {
  clearTimeout(turn);
  [shown, told, order.column, order.down] = [name, null, "", false];
  $("measure").replaceChildren();
  if (!name) return;
  say($("swept"), label(name));
  document.title = `${label(name)} - Echelon`;
  ask(name);
}

export function listen() {
  $("measure").onchange = () => ask(shown);
  $("logs-measure").onchange = () => { if (told) draw(); };
  new ResizeObserver(() => { if (told) draw(); }).observe($("together"));
}
