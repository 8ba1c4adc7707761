// Curves: drawn here at first, and by plotly once the pointer or the focus is on a curve, because
// loading plotly takes a browser more than a second. No text from a run is passed to plotly, which
// would interpret some of it as markup.
import {$, say, put, color, has, figure, number, clock} from "./text.js";
import {speeds} from "./map.js";

const SVG = "http://www.w3.org/2000/svg", LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24;
let drawn = {}, loading = null;
const closer = new Set(); // curves that plotly draws

// --- here ---------------------------------------------------------------------------------------

function ticks(low, high, count) {
  const rough = (high - low) / count || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

// Ticks of a logarithmic axis, as logarithms: powers of ten, or 1, 2 and 5 times them if there are few.
function powers(low, high) {
  if (high - low >= 2) return ticks(low, high, 4).filter(Number.isInteger);
  const found = [];
  for (let power = Math.floor(low); power <= high; power++) found.push(...[1, 2, 5].map((one) => Math.log10(one) + power));
  const seen = found.filter((one) => one >= low && one <= high);
  return seen.length > 1 ? seen : ticks(10 ** low, 10 ** high, 4).map(Math.log10);
}

// Draws one curve, or several `lines` over one another.
export function sketch(place, {x, y, zero, words, log, lines = [{x, y}]}) {
  const width = place.clientWidth, height = place.clientHeight;
  const logarithm = (one) => one > 0 ? Math.log10(one) : null;
  if (log) lines = lines.map((line) => ({...line, y: line.y.map(logarithm)}));
  const known = lines.flatMap((line) => line.y).filter((one) => one != null);
  const least = (some) => some.reduce((a, b) => Math.min(a, b), Infinity), most = (some) => some.reduce((a, b) => Math.max(a, b), -Infinity);
  let low = zero ? 0 : least(known), high = most(known);
  if (!(high > low)) { low = zero ? 0 : low - Math.abs(low || 1) / 2; high += Math.abs(high || 1) / 2; }
  let [from, to] = [least(lines.map((line) => line.x[0])), most(lines.map((line) => line.x.at(-1)))];
  if (from === to) [from, to] = [from - 1, to + 1];
  const across = (one) => LEFT + (width - LEFT - RIGHT) * (one - from) / (to - from);
  const down = (one) => TOP + (height - TOP - BOTTOM) * (high - one) / (high - low);
  const picture = document.createElementNS(SVG, "svg");
  const add = (kind, facts, text) => {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    if (text != null) made.textContent = text;
    picture.append(made);
    return made;
  };
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const tick of log ? powers(low, high) : ticks(low, high, 4)) {
    const value = log ? 10 ** tick : tick;
    add("line", {x1: LEFT, x2: width - RIGHT, y1: down(tick), y2: down(tick)});
    add("text", {x: LEFT - 6, y: down(tick) + 4, "text-anchor": "end"}, Math.abs(value) >= 1000 && !log ? number(value, 0) : figure(value));
  }
  for (const tick of words ? [from, (from + to) / 2, to] : ticks(from, to, Math.max(2, width / 110)).filter(Number.isInteger)) {
    const anchor = tick === to ? "end" : tick === from ? "start" : "middle";
    add("text", {x: across(tick), y: height - 6, "text-anchor": anchor}, words ? words(tick) : number(tick, 0));
  }
  for (const line of lines) {
    let path = "", pen = "M";
    line.x.forEach((one, at) => {
      if (line.y[at] == null) { pen = "M"; return; }
      path += `${pen}${across(one).toFixed(1)} ${down(line.y[at]).toFixed(1)}`;
      pen = "L";
    });
    const made = add("path", {d: line.x.length > 1 ? path : `${path}h0`, class: "curve"});
    if (line.color) made.style.stroke = line.color; // an attribute would be blocked as inline style
  }
  place.replaceChildren(picture);
}

// --- by plotly ----------------------------------------------------------------------------------

function load() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = document.querySelector("meta[name=plotly]").content;
    script.onload = done;
    script.onerror = () => { loading = null; failed(); }; // the next look tries again
    document.head.append(script);
  });
  return loading;
}

function plot(place, {x, y, zero, dates, hover, log}) {
  const axis = {gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true};
  const layout = {
    margin: {l: LEFT, r: RIGHT, t: TOP, b: BOTTOM}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {color: color("--faint"), size: 12}, showlegend: false, uirevision: hover, hovermode: "x",
    xaxis: {...axis, type: dates ? "date" : "linear"}, yaxis: {...axis, type: log ? "log" : "linear", rangemode: zero ? "tozero" : "normal"}};
  const data = [{x: dates ? x.map((one) => new Date(1000 * one)) : x, y, type: "scatter", mode: x.length > 1 ? "lines" : "markers",
    line: {color: color("--blue"), width: 2}, hovertemplate: `${hover}<extra></extra>`}];
  if (!place.classList.contains("js-plotly-plot")) place.replaceChildren();
  return Plotly.react(place, data, layout, {displayModeBar: false, responsive: true});
}

function show(id, curve) {
  drawn[id] = curve;
  if (closer.has(id)) plot($(id), curve);
  else sketch($(id), curve);
}

async function lookCloser(id) {
  if (closer.has(id) || !drawn[id]) return;
  try {
    await load();
  } catch { return; } // keep the simple drawing
  closer.add(id);
  if (drawn[id]) plot($(id), drawn[id]);
}

// --- which --------------------------------------------------------------------------------------

function choose(names) {
  const choice = $("metric"), known = [...choice.options].map((one) => one.value);
  if (names.length && names.length === known.length && names.every((name, at) => name === known[at])) return;
  const before = choice.value;
  choice.replaceChildren();
  for (const name of names) put(choice, "option", name).value = name;
  choice.hidden = !names.length;
  choice.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0] || "";
}

// Draws the curves that have changed, by their names in `dirty`.
export function drawCurves({curves}, dirty, force) {
  const names = [...curves.keys()].sort();
  choose(names);
  const name = $("metric").value, whose = drawn.curve && drawn.curve.name;
  if (has($("curve"), names.length > 0) && (force || dirty.has(`curve ${name}`) || whose !== name)) {
    const [x, y] = curves.get(name);
    show("curve", {name, x, y, log: $("logs-metric").checked, hover: "step %{x}: %{y}"});
  }
  drawRate(curves, dirty, force || !drawn.rate);
}

function drawRate(curves, dirty, force) {
  const told = curves.has("rate");
  if (!force && !dirty.has(told ? "curve rate" : "columns")) return;
  const [x, y] = told ? curves.get("rate") : speeds();
  const any = has($("rate"), x.length > 0);
  say($("speed"), told ? "Throughput: samples per second, by step" : any ? "Throughput: steps per second" : "Throughput");
  if (!any) return;
  if (told) show("rate", {x, y, zero: true, hover: "step %{x}: %{y}/s"});
  else show("rate", {x, y, zero: true, dates: true, words: clock, hover: "%{y} steps/s"});
}

export const forget = () => { drawn = {}; };

export function listen() {
  for (const id of ["curve", "rate"]) $(id).onpointerenter = $(id).onfocus = () => lookCloser(id);
  new ResizeObserver(() => { for (const [id, curve] of Object.entries(drawn)) if (!closer.has(id)) sketch($(id), curve); }).observe($("curve"));
}
