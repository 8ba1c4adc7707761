// The ranks' output: the newest lines, new ones as they arrive, and a search in older ones.
import {$, say, put} from "./text.js";
import {get} from "./api.js";

const MOST = 2000, EVERY_MS = 1500;
let name = "", next = null, asking = null, due = null, again = false;

const query = () => {
  const asked = new URLSearchParams();
  if ($("search").value) asked.set("search", $("search").value);
  if ($("rank").value) asked.set("rank", $("rank").value);
  if (next !== null) asked.set("after", next);
  return asked;
};

function append(lines, whole) {
  const place = $("logs"), more = document.createDocumentFragment();
  if (!whole && place.children.length) put(more, "div", "… some lines are not shown", "faint");
  for (const [rank, text] of lines.slice(-MOST)) {
    const line = put(more, "div");
    put(line, "span", rank, "rank");
    put(line, "span", text.split("\r").findLast((one) => one) ?? "", "text"); // the last state of a progress bar
  }
  place.append(more);
  while (place.children.length > MOST) place.firstChild.remove();
}

async function ask() {
  if (asking || !name) { again = Boolean(name); return; }
  const stop = asking = new AbortController(), first = next === null, place = $("logs");
  try {
    const answer = await get(`/api/runs/${encodeURIComponent(name)}/logs?${query()}`, {signal: stop.signal});
    if (!answer.ok) return;
    const {lines, next: count, whole} = await answer.json();
    if (asking !== stop) return;
    next = count;
    if (first) place.replaceChildren();
    append(lines, whole || first);
    if (first) {
      const wanted = $("search").value || $("rank").value;
      say($("found"), wanted ? `${whole ? "" : "newest "}${lines.length} lines` : lines.length ? "" : "no output yet");
    } else if (lines.length && !$("search").value && !$("rank").value) say($("found"), "");
    if ($("tail").checked && (lines.length || first)) place.scrollTop = place.scrollHeight;
    document.dispatchEvent(new CustomEvent("printed"));
  } catch (error) {
    if (error.name !== "AbortError") say($("found"), "no response from the server");
  } finally {
    if (asking === stop) asking = null;
    if (again && !asking) { again = false; ask(); }
  }
}

// Starts over with another run or search.
function restart() {
  if (asking) asking.abort();
  asking = null;
  next = null;
  ask();
}

export function open(run) {
  name = run;
  $("logs").replaceChildren();
  say($("found"), "");
  if (asking) asking.abort();
  asking = due = next = null;
  if (name) ask();
}

// The run has changed, so there may be new output soon.
export function soon() {
  if (due || !$("tail").checked || document.hidden) return;
  due = setTimeout(() => { due = null; if ($("tail").checked) ask(); }, EVERY_MS);
}

export function showRank(rank) {
  $("search").value = "";
  $("rank").value = rank;
  restart();
  $("logs").scrollIntoView({block: "center"});
  $("logs").focus();
}

export function listen() {
  let typed = null;
  const type = () => { clearTimeout(typed); typed = setTimeout(restart, 150); };
  $("search").oninput = $("rank").oninput = type;
  $("find").onsubmit = (event) => { event.preventDefault(); clearTimeout(typed); restart(); };
  $("tail").onchange = () => { if ($("tail").checked) ask(); };
  // After scrolling back, nothing moves until the end is reached again.
  const place = $("logs");
  let before = 0;
  place.onscroll = () => {
    const end = place.scrollHeight - place.scrollTop - place.clientHeight < 8, up = place.scrollTop < before;
    before = place.scrollTop;
    if (!end && up) $("tail").checked = false;
    else if (end && !up && !$("tail").checked) { $("tail").checked = true; ask(); }
  };
}
