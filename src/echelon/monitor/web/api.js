// The server, asked with the token. It comes in the address's fragment, which browsers send nowhere,
// and is kept in this tab's session storage, which no other origin can read: ports separate it,
// while they do not separate cookies.
const KEY = "token", WAIT_MS = 400, FIRST_MS = 500, LAST_MS = 10000;
const others = new BroadcastChannel("token"); // tabs of this origin alone

export const known = () => Boolean(sessionStorage.getItem(KEY));
export const forget = () => sessionStorage.removeItem(KEY);

// Takes the token out of the address, and out of the tab's history with it; tells whether there was one.
export function takeToken() {
  const asked = new URLSearchParams(location.hash.slice(1)), token = asked.get("token");
  if (token === null) return false;
  history.replaceState(null, "", `${location.pathname}#${encodeURIComponent(asked.get("run") ?? "")}`);
  sessionStorage.setItem(KEY, token);
  return true;
}

// Asks other tabs for the token: one that was opened by a link starts without. Resolves in any case.
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

// As fetch, with the token; when the server does not take it, the page hears "refused".
export async function get(path, {signal} = {}) {
  const headers = {Authorization: `Bearer ${sessionStorage.getItem(KEY)}`};
  const answer = await fetch(path, {signal, headers, credentials: "omit", redirect: "error"});
  if (answer.status === 401) dispatchEvent(new Event("refused"));
  return answer;
}

// A fault of the page's own must not look like a broken connection.
function heed(hear, data) {
  try { hear(data); } catch (error) { reportError(error); }
}

// Reads a stream of events for as long as it is wanted, and opens it again when it breaks off.
// `hear` gets the data of each, `lose` is told of a break, `fail` of an answer that ends it.
// Returns how to end it.
export function follow(path, {hear, lose, fail}) {
  const stop = new AbortController(), {signal} = stop;
  let wait = FIRST_MS;
  const once = async () => {
    const answer = await get(path, {signal});
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
      await once().catch(() => {}); // whatever broke it off, it is tried again
      if (signal.aborted) return;
      lose();
      await new Promise((done) => { setTimeout(done, wait); });
      wait = Math.min(2 * wait, LAST_MS);
    }
  })();
  return () => stop.abort();
}
