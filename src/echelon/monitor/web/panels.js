// The parts of the page that are text and bars.
import {$, say, put, percent, number, amount, figure, duration, clock, moment, has} from "./text.js";

const OVER = new Set(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"]);

export function drawHead({head, speed}, now) {
  say($("name"), head.run);
  document.title = `${head.run}: ${head.phase}`;
  say($("phase"), head.phase);
  $("phase").className = `badge ${/^[A-Z_]+$/.test(head.phase) ? head.phase : ""}`;
  $("silent").hidden = !head.silent;
  say($("silent"), head.silent ? `no data for ${duration(head.silent)}` : "");
  const facts = {
    step: head.step >= 0 ? number(head.step) : "",
    loss: head.newest.loss == null ? "" : figure(head.newest.loss),
    throughput: head.newest.rate == null ? (speed == null ? "" : `${figure(speed)} steps/s`) : `${number(head.newest.rate, 1)} samples/s`,
    ranks: head.ranks ? (head.failed ? `${head.ranks}, ${head.failed} failed` : head.ranks) : "",
    nodes: head.nodes || "",
    restarts: head.restarts || "",
    effective: percent(head.effective),
    time: head.began ? duration((head.ended || now) - head.began) : "",
    job: head.job,
    code: head.code || "",
    request: head.request || "",
    command: head.command || "",
  };
  const list = $("facts"), shown = Object.entries(facts).filter(([, value]) => value !== "");
  while (list.children.length > shown.length) list.lastChild.remove();
  while (list.children.length < shown.length) { const pair = put(list, "div"); put(pair, "dt"); put(pair, "dd"); }
  shown.forEach(([name, value], place) => { say(list.children[place].children[0], name); say(list.children[place].children[1], value); });
  drawStage(head);
}

function drawStage(head) {
  const next = head.waiting, since = next && next.since ? ` since ${moment(Date.parse(next.since) / 1000)}` : "";
  const job = next && next.job ? `job ${next.job}` : "its job";
  let text = "";
  if (head.phase === "QUEUED") text = `Queued: ${job}${since}. Ranks, metrics and output appear here when it starts.`;
  else if (head.phase === "STARTING") text = "The job has started; waiting for its nodes.";
  else if (head.phase === "RESTARTING") text = "Restarting the ranks.";
  else if (next && OVER.has(head.phase)) text = `The next attempt, ${job}, is queued${since}.`;
  $("stage").hidden = !text;
  $("one").classList.toggle("early", head.phase === "QUEUED"); // nothing else to show yet
  say($("stage").firstElementChild, text);
}

export function drawVerdict({verdict}) {
  const failure = verdict && verdict.failure;
  $("verdict").hidden = !failure;
  if (!failure) return;
  const who = failure.rank == null ? failure.node || "the run" : `rank ${failure.rank}`;
  const where = failure.node && failure.rank != null ? ` on ${failure.node}` : "";
  const step = failure.step == null ? "" : ` at step ${number(failure.step)}`;
  say($("why"), `${who}${where}${step}: ${failure.message}`);
  say($("cause"), `Cause: ${failure.cause}`);
  say($("advice"), verdict.advice ? `Hint: ${verdict.advice}` : "");
  const hurt = verdict.victims.length ? `${verdict.victims.length === 1 ? "One other rank" : `${verdict.victims.length} other ranks`} failed after it. ` : "";
  say($("retry"), `${hurt}${verdict.not_retried ? `Not retried: ${verdict.not_retried}.` : ""}`);
  $("whose").hidden = failure.rank == null;
  $("whose").dataset.rank = failure.rank ?? "";
  say($("whose"), `Show the output of rank ${failure.rank}`);
  const stacks = Object.entries(verdict.stacks).map(([rank, text]) => `rank ${rank}:\n${text}`);
  const trace = [failure.traceback, ...stacks].filter(Boolean).join("\n\n");
  $("trace").hidden = !trace;
  say($("trace").querySelector("pre"), trace);
}

export function drawTime({time}) {
  const spent = Object.entries(time.seconds).filter(([name, s]) => name !== "queue" && s > 0).sort((a, b) => b[1] - a[1]);
  const place = $("time"), all = spent.reduce((sum, [, s]) => sum + s, 0);
  if (!has(place, spent.length > 0)) return;
  place.replaceChildren();
  for (const [name, s] of spent) {
    const row = put(place, "div", null, "row");
    put(row, "span", name);
    const bar = put(put(row, "span", null, "track"), "span", null, name === "productive" ? "good" : "warm");
    bar.style.width = `${Math.max(0.5, 100 * s / all)}%`;
    put(row, "span", `${(100 * s / all).toFixed(s / all < 0.1 ? 1 : 0)} %`);
  }
  const unit = time.gpus ? "GPU" : "rank", hours = all / 3600;
  const queue = time.seconds.queue > 0 ? `, plus ${duration(time.seconds.queue)} in the queue` : "";
  put(place, "p", `of ${hours < 1 ? `${number(all, 0)} ${unit}-seconds` : `${number(hours, 1)} ${unit}-hours`}${queue}`, "faint");
}

export function drawAttempts({attempts}, now) {
  const place = $("line");
  if (!has(place, attempts.length > 0)) return;
  const ends = attempts.map((one) => one.ended || Math.max(now, one.began));
  const from = Math.min(...attempts.map((one) => one.began)), to = Math.max(...ends, from + 1);
  const part = (time) => 100 * (time - from) / (to - from);
  place.replaceChildren();
  attempts.forEach((one, at) => {
    const row = put(place, "div", null, "attempt");
    put(row, "p", `attempt ${one.number}${one.job ? `, job ${one.job}` : ""}: ${one.outcome || "running"}, ${duration(ends[at] - one.began)}`);
    const track = put(row, "div", null, "track");
    const base = put(track, "span", null, "base");
    base.style.left = `${part(one.began)}%`;
    base.style.width = `${Math.max(0.5, part(ends[at]) - part(one.began))}%`;
    for (const g of one.generations) {
      const bar = put(track, "span", null, g.why ? "bad" : "good");
      bar.style.left = `${part(g.began)}%`;
      bar.style.width = `${Math.max(0.5, part(g.ended || ends[at]) - part(g.began))}%`;
      bar.title = `${g.ranks} ranks on ${g.nodes} nodes${g.why ? `: ${g.why}` : ""}`;
    }
    for (const g of one.generations.filter((g) => g.why).slice(-3)) put(row, "p", `${clock(g.ended)}  ${g.why}`, "reason");
  });
  const axis = put(place, "p", null, "axis");
  put(axis, "span", moment(from));
  put(axis, "span", attempts.at(-1).ended ? moment(to) : "now");
}

export function drawSaid({said}) {
  const place = $("said");
  if (!has(place, said.length > 0)) return;
  place.replaceChildren();
  for (const [time, text] of [...said].reverse()) {
    const line = put(place, "li");
    put(line, "time", clock(time), "faint");
    line.append(" ");
    put(line, "span", text);
  }
}

export function drawSaves({checkpoints}) {
  if (!has($("saves"), checkpoints.length > 0)) return;
  const body = $("saves").tBodies[0];
  body.replaceChildren();
  for (const one of checkpoints) {
    const row = put(body, "tr"), told = Object.entries(one.metrics).map(([name, value]) => `${name} ${figure(value)}`);
    for (const cell of [number(one.step), moment(one.time), amount(one.bytes)]) put(row, "td", cell);
    put(row, "td", `${one.best ? "★ best  " : ""}${told.slice(0, 4).join("  ")}`, "wrap");
  }
}
