// All runs: a table to filter and sort, in which runs are chosen for a comparison.
import {$, say, put, number, figure, duration, moment} from "./text.js";
import {makeOrder, mark, title} from "./tables.js";
import {nameComparison} from "./compare.js";

const HEADINGS = ["run", "state", "metric", "step", "command", "ranks", "attempts", "started", "duration"];
const chosen = new Set(), rows = new Map(), order = makeOrder(() => drawRuns(runs, now));
let runs = [], now = 0;

const took = (run) => run.began ? (run.ended || now) - run.began : null;
const measured = (run) => run.metric ? `${run.metric[0]} ${figure(run.metric[1])}` : "";
const values = (run) => [run.run, run.phase, run.metric && run.metric[1], run.step >= 0 ? run.step : null, run.command, run.ranks, run.attempts, run.began, took(run)];

function matches(run) {
  const text = `${run.run} ${run.phase} ${run.command}`.toLowerCase();
  return $("filter").value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function makeRow(name) {
  const row = document.createElement("tr"), first = row.insertCell(), box = put(first, "input"), link = put(first, "a", name);
  box.type = "checkbox";
  box.ariaLabel = `choose ${name}`;
  box.onchange = () => { chosen[box.checked ? "add" : "delete"](name); drawChoice(); };
  link.setAttribute("href", `#${encodeURIComponent(name)}`);
  put(row.insertCell(), "span", null, "badge");
  while (row.cells.length < HEADINGS.length) row.insertCell();
  row.cells[4].className = "command";
  rows.set(name, row);
  return row;
}

function drawRow(run) {
  const row = rows.get(run.run) || makeRow(run.run);
  mark(row.cells[1].firstChild, run.phase);
  [measured(run), run.step >= 0 ? number(run.step) : "", run.command ?? "", run.ranks || "", run.attempts || "", moment(run.began),
    run.began ? duration(took(run)) : ""].forEach((cell, at) => say(row.cells[at + 2], cell));
  row.cells[4].title = row.cells[4].textContent;
  return row;
}

function drawChoice() {
  const names = runs.map((run) => run.run).filter((name) => chosen.has(name));
  $("compare").hidden = !names.length;
  say($("compare"), names.length === 1 ? "Compare 1 run" : `Compare ${names.length} runs`);
  $("compare").setAttribute("href", `#${encodeURIComponent(nameComparison(names))}`);
}

export function drawRuns(some, time) {
  [runs, now] = [some, time];
  $("none").hidden = runs.length > 0;
  $("every").hidden = !runs.length;
  title($("list"), HEADINGS, order);
  const body = $("list").tBodies[0], shown = order.sort(runs.filter(matches), HEADINGS, (run, at) => values(run)[at]).map(drawRow);
  say($("matched"), shown.length < runs.length ? `${shown.length} of ${runs.length} runs` : "");
  // A row that is in its place is not moved, so that it keeps the focus.
  shown.forEach((row, at) => { if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null); });
  while (body.rows.length > shown.length) body.deleteRow(-1);
  const known = new Set(runs.map((run) => run.run));
  for (const name of rows.keys()) if (!known.has(name)) { rows.delete(name); chosen.delete(name); }
  drawChoice();
}

export function listen() {
  $("filter").oninput = () => drawRuns(runs, now);
}
