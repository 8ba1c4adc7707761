// A sweep: the table of its tasks, and the curves of all of them over one another.
import {$, say, put, figure, has} from "./text.js";
import {fill, title} from "./tables.js";
import {sketch} from "./curves.js";
import {get} from "./api.js";

const EVERY_MS = 4000;
let shown = "", told = null, turn = null, column = "", down = false;

const hue = (at, count) => `hsl(${Math.round(360 * at / count)} 70% 50%)`;

async function ask(name) {
  clearTimeout(turn);
  const metric = encodeURIComponent($("measure").value);
  const answer = await get(`/api/sweeps/${encodeURIComponent(name)}?metric=${metric}`).catch(() => null);
  if (name !== shown) return;
  if (answer && answer.ok) { told = await answer.json(); draw(); }
  say($("link"), answer ? "" : "connection lost, reconnecting…");
  turn = setTimeout(ask, EVERY_MS, name);
}

function sorted(rows, at) {
  if (at < 0) return rows;
  const key = (row) => row[at] === null || row[at] === "" ? NaN : Number(row[at]);
  const order = (a, b) => {
    const [one, other] = [key(a), key(b)];
    if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) - Number.isNaN(other) || String(a[at] ?? "").localeCompare(String(b[at] ?? ""));
    return down ? other - one : one - other;
  };
  return [...rows].sort(order);
}

function draw() {
  const {names, metric, metrics, rows, curves} = told, choice = $("measure");
  say($("swept"), shown);
  const counts = new Map();
  for (const row of rows) counts.set(row.at(-2), (counts.get(row.at(-2)) || 0) + 1);
  say($("counts"), [...counts].map(([state, count]) => `${count} ${state}`).join(", "));
  if (metrics.join("\n") !== [...choice.options].map((one) => one.value).join("\n")) {
    choice.replaceChildren();
    for (const name of metrics) put(choice, "option", name).value = name;
  }
  choice.value = metric;
  choice.hidden = !metrics.length;
  const headings = ["run", ...names, "state", ...(metric ? [metric] : [])], table = $("tasks");
  title(table, headings);
  [...table.tHead.rows[0].cells].forEach((cell, at) => {
    cell.onclick = () => { down = column === headings[at] && !down; column = headings[at]; draw(); };
  });
  const ordered = sorted(rows, headings.indexOf(column));
  fill(table, ordered.map((row) => ({kind: row.at(-2) === "FAILED" ? "failed" : "",
    cells: ["", ...row.slice(1, -1), ...(metric ? [figure(row.at(-1))] : [])]})));
  ordered.forEach((row, at) => {
    const cell = table.tBodies[0].rows[at].cells[0], link = put(cell, "a", row[0]);
    link.setAttribute("href", `#${encodeURIComponent(row[0])}`);
    const place = curves.findIndex((curve) => curve.run === row[0]);
    cell.style.borderLeft = place < 0 ? "" : `4px solid ${hue(place, curves.length)}`;
  });
  if (has($("together"), curves.length > 0)) {
    const lines = curves.map(({x, y}, at) => ({x, y, color: hue(at, curves.length)}));
    sketch($("together"), {lines});
  }
}

export function open(name) {
  clearTimeout(turn);
  [shown, told, column, down] = [name, null, "", false];
  $("measure").replaceChildren();
  if (name) { document.title = `${name} - Echelon`; ask(name); }
}

export function listen() {
  $("measure").onchange = () => ask(shown);
  new ResizeObserver(() => { if (told) draw(); }).observe($("together"));
}
