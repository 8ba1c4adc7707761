// Tables, and those of ranks and nodes. Rows are reused, and only changed cells are written.
import {$, say, put, percent, number, amount, has} from "./text.js";

const MOST_RANKS = 50, MOST_NODES = 150;

export function fill(table, lines) {
  const body = table.tBodies[0];
  while (body.rows.length > lines.length) body.deleteRow(-1);
  lines.forEach(({cells, kind}, place) => {
    const row = body.rows[place] || body.insertRow();
    if (row.className !== (kind || "")) row.className = kind || "";
    cells.forEach((cell, at) => say(row.cells[at] || row.insertCell(), cell));
    while (row.cells.length > cells.length) row.deleteCell(-1);
  });
}

// The order of a table whose headings can be clicked.
export const makeOrder = (redraw) => ({
  column: "", down: false,
  choose(name) { this.down = this.column === name && !this.down; this.column = name; redraw(); },
  // Numbers come first, by size, then words, then empty cells.
  sort(rows, headings, value = (row, at) => row[at]) {
    const at = headings.indexOf(this.column), sign = this.down ? -1 : 1;
    if (at < 0) return rows;
    const key = (row) => { const cell = value(row, at); return cell == null || cell === "" ? [2, 0] : Number.isNaN(Number(cell)) ? [1, String(cell)] : [0, Number(cell)]; };
    const compare = ([kind, one], [other, two]) => kind - other || (kind === 1 ? sign * one.localeCompare(two) : sign * (one - two));
    return [...rows].sort((a, b) => compare(key(a), key(b)));
  },
});

export function title(table, names, order) {
  const row = table.tHead.rows[0];
  if (names.length !== row.cells.length || names.some((name, at) => row.cells[at].textContent !== name)) {
    row.replaceChildren();
    for (const name of names) {
      const cell = put(row, "th", order ? null : name);
      cell.scope = "col";
      if (order) put(cell, "button", name).onclick = () => order.choose(name);
    }
  }
  if (order) [...row.cells].forEach((cell, at) => { cell.ariaSort = names[at] !== order.column ? "none" : order.down ? "descending" : "ascending"; });
}

// Shows the state of a run as a badge.
export function mark(badge, state) {
  say(badge, state ?? "…");
  badge.className = `badge ${/^[A-Z_]+$/.test(state ?? "") ? state : ""}`;
}

// Failed ranks first, then ended ones, then those that others wait for, or the slowest.
const trouble = (at, some) => (a, b) => b[at.failed] - a[at.failed] || a[at.alive] - b[at.alive]
  || (some ? (b[at.busy] ?? 0) - (a[at.busy] ?? 0) : (a[at.steps] ?? 0) - (b[at.steps] ?? 0)) || a[0] - b[0];

export function drawRanks({head, ranks, nodes}) {
  if (!has($("ranks"), ranks.length > 0)) { say($("more"), ""); return; }
  const at = Object.fromEntries(head.fields.map((name, place) => [name, place]));
  const names = new Map(nodes.map((node) => [node.node, node.name]));
  const some = (name) => ranks.some((rank) => name === "gone" ? !rank[at.alive] : rank[at[name]] != null);
  const columns = [
    ["rank", (rank) => rank[at.rank]],
    ["node", (rank) => names.get(rank[at.node]) || ""],
    ["state", (rank) => rank[at.failed] ? "failed" : rank[at.alive] ? "" : "ended", "gone"],
    ["step", (rank) => number(rank[at.step]), "step"],
    ["steps/s", (rank) => number(rank[at.steps]), "steps"],
    ["busy", (rank) => percent(rank[at.busy]), "busy"],
    ["wait for ranks", (rank) => percent(rank[at.comm]), "comm"],
    ["wait for data", (rank) => percent(rank[at.data]), "data"],
    ["checkpoints", (rank) => percent(rank[at.stall]), "stall"],
    ["memory", (rank) => amount(rank[at.mem]), "mem"],
    ["GPU", (rank) => percent(rank[at.util]), "util"],
  ].filter(([, , needed]) => !needed || some(needed));
  title($("ranks"), columns.map(([name]) => name));
  const worst = [...ranks].sort(trouble(at, some("busy")));
  fill($("ranks"), worst.slice(0, MOST_RANKS).map((rank) => ({
    kind: rank[at.failed] ? "failed" : rank[at.alive] ? "" : "gone", cells: columns.map(([, of]) => of(rank))})));
  say($("more"), worst.length > MOST_RANKS ? `and ${worst.length - MOST_RANKS} more` : "");
}

export function drawNodes({nodes}) {
  if (!has($("nodes"), nodes.length > 0)) { say($("rest"), ""); return; }
  const gpus = nodes.some((node) => node.gpus.length);
  title($("nodes"), ["node", "CPU", "memory", "received", "sent", "disk read", "disk write", ...(gpus ? ["GPUs"] : [])]);
  const rate = (value) => value == null ? "" : `${amount(value)}/s`;
  const shown = [...nodes].sort((a, b) => a.here - b.here || a.node - b.node).slice(0, MOST_NODES);
  fill($("nodes"), shown.map(({name, node, here, numbers: told, gpus: utils}) => ({kind: here ? "" : "failed", cells: [
    here ? name || `node ${node}` : `${name} (lost)`, percent(told.cpu),
    told.mem == null ? "" : `${amount(told.mem)} of ${amount(told.mem_size)}`,
    rate(told.received), rate(told.sent), rate(told.disk_read), rate(told.disk_written),
    ...(gpus ? [utils.map(percent).join("  ")] : [])]})));
  say($("rest"), nodes.length > MOST_NODES ? `and ${nodes.length - MOST_NODES} more` : "");
}
