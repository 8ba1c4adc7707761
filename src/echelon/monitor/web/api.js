// Requests to the server, with the token. The token comes in the URL's fragment, which browsers do not
// send, and is kept in this tab's session storage. That is separated by port, unlike cookies.
const KEY = "token", WAIT_MS = 400, FIRST_MS = 500, LAST_MS = 10000, ANSWER_MS = 15000;
const others = new BroadcastChannel("token"); // only tabs of this origin

export const known = () => Boolean(sessionStorage.getItem(KEY));
export const forget = () => sessionStorage.removeItem(KEY);

// Removes the token from the URL and the tab's history; returns whether there was one.
export function takeToken() {
  const asked = new URLSearchParams(location.hash.slice(1)), token = asked.get("token");
  if (token === null) return false;
  history.replaceState(null, "", `${location.pathname}#${encodeURIComponent(asked.get("run") ?? "")}`);
  sessionStorage.setItem(KEY, token);
  return true;
}

// Asks other tabs for the token, because a tab that was opened by a link has none. Always resolves.
export const borrow = () => new Promise((done) => {
  addEventListener("borrowed", done, {once: true});
  setTimeout(done, WAIT_MS);
  others.postMessage({});
});
others.onmessage = ({data}) => {
  if (!data.token && known()) others.postMessage({token: sessionStorage.getItem(KEY)});
  if (data.token && !known()) {
    sessionStorage.setItem(KEY, data.token);
    dispatchEvent(new Event("borrowed"));
  }
};

// Like fetch, with the token. Dispatches "refused" if the server rejects it.
export async function get(path, {signal} = {}) {
  const headers = {Authorization: `Bearer ${sessionStorage.getItem(KEY)}`};
  const answer = await fetch(path, {signal, headers, credentials: "omit", redirect: "error"});
  if (answer.status === 401) dispatchEvent(new Event("refused"));
  return answer;
}

// An error in the page must not look like a lost connection.
function heed(hear, data) {
  try { hear(data); } catch (error) { reportError(error); }
}

// Reads a stream of events, and reconnects when the connection is lost. Calls `hear` with the data of
// each event, `lose` when the connection is lost, and `fail` with a status that ends it.
// Returns a function that closes it.
export function follow(path, {hear, lose, fail}) {
  const stop = new AbortController(), {signal} = stop;
  let wait = FIRST_MS;
  const once = async () => {
    // A forwarded connection that is half open answers nothing, without an error.
    const patience = new AbortController(), timer = setTimeout(() => patience.abort(), ANSWER_MS);
    const answer = await get(path, {signal: AbortSignal.any([signal, patience.signal])});
    clearTimeout(timer);
    if (answer.status >= 400 && answer.status < 500) { stop.abort(); fail(answer.status); return; }
    if (!answer.ok) throw new Error(answer.status);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let kept = "", part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (kept + part.value).split("\n\n");
      kept = events.pop();
      for (const event of events) if (!signal.aborted && event.startsWith("data: ")) heed(hear, event.slice(6));
      wait = FIRST_MS;
    }
  };
  (async () => {
    while (!signal.aborted) {
      await once().catch(() => {}); // retry after any error
      if (signal.aborted) return;
      lose();
      await new Promise((done) => { setTimeout(done, wait); });
      wait = Math.min(2 * wait, LAST_MS);
    }
  })();
  return () => stop.abort();
}
