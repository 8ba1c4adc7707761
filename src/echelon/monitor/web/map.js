// Heat map of ranks over time, on a canvas. A straggler shows as a stripe, and is named.
import {$, say, put, percent, figure, clock} from "./text.js";

const NAMES = {busy: "busy (not waiting)", steps: "steps per second", util: "GPU utilisation"};
const SECONDS = 120, HIGHEST = 360, HOLD = 2, LATELY = 20, LONGEST = 10;
const SHARES = new Set(["busy", "util"]);
// Viridis, which is also readable in grayscale and with color blindness.
const STOPS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const COLORS = Uint32Array.from({length: 256}, (_, at) => {
  const place = at / 255 * (STOPS.length - 1), low = Math.min(STOPS.length - 2, Math.floor(place)), part = place - low;
  const [r, g, b] = [0, 1, 2].map((one) => Math.round(STOPS[low][one] * (1 - part) + STOPS[low + 1][one] * part));
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
});

const usuals = new Map(); // medians of seconds that do not change any more
let columns = new Map(), chosen = "", shape = null, at = null;

export function clear() { columns = new Map(); usuals.clear(); chosen = ""; shape = at = null; $("mark").hidden = true; say($("cell"), ""); }

export function keep(news) {
  if (news.length > 10) usuals.clear();
  for (const one of news) {
    const kept = {span: one.span || 1};
    for (const kind of Object.keys(NAMES)) if (one[kind]) kept[kind] = Float32Array.from(one[kind], (cell) => cell ?? NaN);
    columns.set(one.time, kept);
  }
  const times = [...columns.keys()].sort((a, b) => a - b);
  for (const time of times.slice(0, Math.max(0, times.length - SECONDS - 1))) columns.delete(time);
}

const newest = () => Math.max(...columns.keys());
const median = (values) => {
  const known = Float32Array.from(values).filter((one) => one === one).sort();
  return known.length ? known[known.length >> 1] : NaN;
};

// Median steps per second of the ranks, over time.
export function speeds() {
  const times = [...columns.keys()].sort((a, b) => a - b).filter((time) => columns.get(time).steps);
  return [times, times.map((time) => median(columns.get(time).steps)).map((one) => Number.isNaN(one) ? null : one)];
}

function offer() {
  const kinds = Object.keys(NAMES).filter((kind) => [...columns.values()].some((one) => one[kind] && one[kind].some((cell) => cell === cell)));
  const choice = $("heat");
  if (kinds.join() !== [...choice.options].map((one) => one.value).join()) {
    choice.replaceChildren();
    for (const kind of kinds) put(choice, "option", NAMES[kind]).value = kind;
  }
  const usual = ["util", "busy", "steps"].find((kind) => kinds.includes(kind)) || "";
  choice.value = kinds.includes(chosen) ? chosen : usual;
  return choice.value;
}
export const choose = (kind) => { chosen = kind; };

// Fills the cells by rank and second; gaps of late samples are bridged.
function grid(kind, ranks, from, width) {
  const cells = new Float32Array(ranks * width).fill(NaN);
  for (let x = 0; x < width; x++) {
    const sources = [];
    for (let back = 0; back < LONGEST && back <= x; back++) {
      const column = columns.get(from + x - back), span = column ? Math.max(column.span, HOLD + 1) : 0;
      if (column && column[kind] && back < span) sources.push(column[kind]);
    }
    for (const told of sources.reverse()) { // the nearest sample wins
      for (let rank = Math.min(ranks, told.length) - 1; rank >= 0; rank--) {
        const value = told[rank];
        if (value === value) cells[rank * width + x] = value;
      }
    }
  }
  return cells;
}

// If several ranks share a row of pixels, show the one furthest from the median.
function squeeze(kind, cells, ranks, from, width, rows) {
  if (rows >= ranks) return cells;
  const shown = new Float32Array(rows * width).fill(NaN), column = new Float32Array(ranks), fresh = newest() - 10;
  if (usuals.size > 5 * SECONDS) usuals.clear();
  for (let x = 0; x < width; x++) {
    for (let rank = 0; rank < ranks; rank++) column[rank] = cells[rank * width + x];
    const time = from + x, name = `${kind} ${time}`;
    if (time > fresh || !usuals.has(name)) usuals.set(name, median(column));
    const usual = usuals.get(name);
    for (let rank = 0; rank < ranks; rank++) {
      const place = Math.floor(rank * rows / ranks) * width + x, value = column[rank];
      if (value === value && !(Math.abs(shown[place] - usual) >= Math.abs(value - usual))) shown[place] = value;
    }
  }
  return shown;
}

export function drawMap(run) {
  const ranks = run.ranks.length, kind = columns.size ? offer() : "";
  $("ranked").hidden = !ranks;
  $("ranked").classList.toggle("bare", !kind);
  if (!kind) { say($("standout"), ranks ? "No measurements. Only GPUs, and ranks that use the library, are measured." : ""); return; }
  const to = newest(), from = Math.max(Math.min(...columns.keys()), to - SECONDS + 1), width = to - from + 1;
  const rows = Math.min(ranks, HIGHEST), cells = grid(kind, ranks, from, width);
  let high = 100;
  if (!SHARES.has(kind)) { high = 0; for (const one of cells) if (one > high) high = one; }
  const canvas = $("map"), height = Math.min(HIGHEST, Math.max(72, 18 * ranks));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== rows) canvas.height = rows;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d"), image = context.createImageData(width, rows), pixels = new Uint32Array(image.data.buffer);
  squeeze(kind, cells, ranks, from, width, rows).forEach((value, place) => {
    pixels[place] = value === value ? COLORS[Math.max(0, Math.min(255, Math.round(255 * value / (high || 1))))] : 0;
  });
  context.putImageData(image, 0, 0);
  shape = {kind, ranks, from, to, width, cells, run};
  drawAxes(ranks, from, to, SHARES.has(kind) ? "100 %" : figure(high));
  const [slow, words] = standout(run);
  say($("standout"), words);
  $("slow").hidden = slow < 0; // one of a thousand ranks is a thin line
  $("slow").style.top = `${100 * (slow + 0.5) / ranks}%`;
  if (at) point();
}

function drawAxes(ranks, from, to, high) {
  const step = ranks <= 16 ? 1 : ranks <= 64 ? 8 : 10 ** Math.floor(Math.log10(ranks - 1)) * (ranks > 500 ? 2 : 1);
  const marks = [];
  for (let rank = 0; rank < ranks; rank += step) marks.push(rank);
  if (String(marks) !== $("rows").dataset.marks + "") {
    $("rows").dataset.marks = String(marks);
    $("rows").replaceChildren();
    for (const rank of marks) put($("rows"), "span", rank).style.top = `${100 * (rank + 0.5) / ranks}%`;
  }
  const places = $("times");
  while (places.children.length < 3) put(places, "span");
  [from, Math.round((from + to) / 2), to].forEach((time, place) => say(places.children[place], clock(time)));
  say($("low"), "0");
  say($("high"), high);
  const scale = $("scale").getContext("2d"), image = scale.createImageData(128, 1), pixels = new Uint32Array(image.data.buffer);
  pixels.forEach((_, place) => { pixels[place] = COLORS[place * 2]; });
  scale.putImageData(image, 0, 0);
}

const whose = (run, rank) => {
  const row = run.ranks[rank], place = run.head.fields.indexOf("node");
  const node = row && run.nodes.find((one) => one.node === row[place]);
  return `rank ${rank}${node && node.name ? ` on ${node.name}` : ""}`;
};

// Finds the rank that recently differs most from the others, and describes how.
function standout(run) {
  const times = [...columns.keys()].sort((a, b) => a - b).slice(-LATELY), ranks = run.ranks.length;
  const kind = ["busy", "util", "steps"].find((one) => times.some((time) => columns.get(time)[one]));
  if (!kind || ranks < 2 || times.length < 3) return [-1, ""];
  const sums = new Float64Array(ranks), counts = new Float64Array(ranks);
  for (const time of times) {
    const told = columns.get(time)[kind];
    for (let rank = 0; told && rank < ranks; rank++) if (told[rank] === told[rank] && told[rank] !== undefined) { sums[rank] += told[rank]; counts[rank]++; }
  }
  const means = sums.map((sum, rank) => counts[rank] ? sum / counts[rank] : NaN), usual = lower(means);
  let most = -1, by = 0;
  means.forEach((mean, rank) => {
    const off = kind === "busy" ? mean - usual : kind === "steps" ? usual - mean : Math.abs(mean - usual);
    if (off > by) { by = off; most = rank; }
  });
  if (most < 0 || by < (kind === "steps" ? 0.2 * usual : 15)) return [-1, ""];
  const who = whose(run, most), [own, others] = [means[most], usual].map((one) => percent(one / 100));
  if (kind === "busy") return [most, `${who} is the slowest: busy ${own} of the time, while the others, at ${others}, wait for it.`];
  if (kind === "util") return [most, `${who} differs: its GPU is busy ${own} of the time, the others’ ${others}.`];
  return [most, `${who} is slow: ${figure(means[most])} steps/s, the others ${figure(usual)}.`];
}
const lower = (values) => {
  const known = values.filter((one) => one === one).sort();
  return known.length ? known[(known.length - 1) >> 1] : NaN;
};

// --- one cell, by pointer or keys ----------------------------------------------------------------

function point() {
  if (!shape) return;
  at.rank = Math.max(0, Math.min(shape.ranks - 1, at.rank));
  at.time = Math.max(shape.from, Math.min(shape.to, at.time));
  const value = shape.cells[at.rank * shape.width + at.time - shape.from];
  const told = value !== value ? "unknown" : SHARES.has(shape.kind) ? percent(value / 100) : `${figure(value)} steps/s`;
  say($("cell"), `${whose(shape.run, at.rank)}, ${clock(at.time)}: ${told}`);
  const mark = $("mark");
  mark.hidden = false;
  mark.style.left = `${100 * (at.time - shape.from + 0.5) / shape.width}%`;
  mark.style.top = `${100 * (at.rank + 0.5) / shape.ranks}%`;
}

export function listen() {
  const canvas = $("map");
  canvas.onpointermove = canvas.onpointerdown = (event) => {
    if (!shape) return;
    const box = canvas.getBoundingClientRect();
    at = {rank: Math.floor(shape.ranks * (event.clientY - box.top) / box.height),
      time: shape.from + Math.floor(shape.width * (event.clientX - box.left) / box.width)};
    point();
  };
  canvas.onpointerleave = canvas.onblur = () => { at = null; $("mark").hidden = true; say($("cell"), ""); };
  canvas.onkeydown = (event) => {
    const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}, move = moves[event.key];
    if (!move || !shape) return;
    event.preventDefault();
    at = at ? {rank: at.rank + move[0], time: at.time + move[1]} : {rank: 0, time: shape.to};
    point();
  };
}
