
// The latest document.
let latest;

function show(now, regained) {
  const before = latest;
  latest = now;
  keepingFocus(() => draw(before, now));
  showLink("live");
  announce(before, now, regained);
}

function draw(before, now) {
  document.body.classList.toggle("serving", now.state === "Serving");
  $("name").textContent = plain(called(now));
  $("state").textContent = plain(phase(now));
  showHeader(now);
  $("versions").textContent = plain("etcd-wrapper " + now.versions.wrapper + ", etcd " + now.versions.etcd + ", " + now.versions.go);
  $("checks").replaceChildren(...checkItems(now));
  $("members").hidden = !now.peers?.length;
  $("peers").replaceChildren(...(now.peers ?? []).map(peerItem));
  $("steps").replaceChildren(...now.transitions.toReversed().map(stepRow));
  showTiles(now);
  showTrends(now);
  showHappened(now);
  showEnd(before, now);
  showCause(now);
  showRecovery(now);
  showBack(now);
  showFacts(now);
  light(now);
}

// announce announces changes to screen readers, except for polling.
function announce(before, now, regained) {
  const ready = readyWord(now);
  const why = health(now) === "degraded" ? conditions(now).map(clause).join("; ") : now.reason;
  const other = before && before.started !== now.started ? watched + " " : "";
  if (regained || health(before) !== health(now)) news(other + "Now " + ready + ", in " + now.state + ": " + why);
  else if (before.state !== now.state && now.attempt < 2) news("Entered " + now.state + ", " + ready + ": " + now.reason);
}

const news = (text) => { $("news").textContent = plain(text); };

// showLink shows whether the page is up to date. Outdated values have no colour.
function showLink(text) {
  document.body.classList.toggle("lost", !link.live);
  $("link").textContent = text;
  $("link").className = link.live ? "live" : "";
  $("zone").textContent = zone();
  if (!latest) return;
  const known = link.live || latest.state === "Terminated";
  const ready = readyWord(latest);
  $("ready").textContent = (known ? "" : "was ") + ready;
  $("ready").className = link.live ? "pill " + worst(latest) : "pill";
  document.title = (link.live ? marks[health(latest)] + " " : "? ") + plain(called(latest)) + " · " +
    (link.live ? plain(phase(latest)) + ", " + ready : "as of " + clock(present()));
  $("icon").href = icon(link.live ? { ok: "#1c7a34", degraded: "#b47400", failed: "#b3261e" }[worst(latest)] : "#8a94a3");
}

const icon = (colour) => "data:image/svg+xml," + encodeURIComponent(
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="' + colour + '"/></svg>');

const silent = "If the process has ended, its log and its termination message (kubectl describe pod) show why.";

function lose(why) {
  const fresh = link.live;
  link.live = false;
  tick();
  if (!latest) return showLink("no connection; retrying");
  const asOf = "as of " + clock(present());
  if (latest.state !== "Terminated") endedWith(silent);
  showCause(latest);
  showLink(asOf + " · " + (latest.state === "Terminated" ? "the process has ended" : why));
  if (fresh) news("Connection lost. The page shows the state " + asOf + ".");
}

// The server sends a heartbeat every 5 s, so a longer silence means that the process does not respond.
const silence = 12000; // ms
const again = 1000; // ms
let attempt;

async function watch() {
  attempt = new AbortController();
  attempt.began = Date.now();
  let why = "no connection; retrying";
  try {
    const reply = await fetch("lifecycle?watch", { signal: attempt.signal, cache: "no-store" });
    if (reply.ok) await listen(reply);
    else why = "HTTP status " + reply.status + "; retrying";
  } catch { // reconnect after any error
  }
  attempt.abort();
  showNewest();
  lose(why);
  setTimeout(watch, again);
}

async function listen(reply) {
  const difference = new Date(reply.headers.get("Date")) - Date.now();
  link.skew = Math.abs(difference) > 2000 ? difference : 0; // the header is in whole seconds
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    link.heard = Date.now();
    const events = (text + value).split("\n\n");
    text = events.pop();
    events.forEach(hear);
  }
}

// The document of the last event, and whether the page still has to show it. Events that arrive together are shown once, so that a slow
// browser does not fall behind.
let received;
let unseen = false;

// hear handles an event: a document or a heartbeat.
function hear(event) {
  const [, data] = /^data: (.*)$/.exec(event) ?? [];
  if (!data) return;
  received = JSON.parse(data);
  if (!unseen) setTimeout(showNewest);
  unseen = true;
}

function showNewest() {
  if (!unseen) return;
  const regained = !link.live;
  link.live = true;
  try {
    show(received, regained);
  } catch (fault) {
    reportError(fault); // a bug in this page, not a broken connection
  }
  unseen = false;
}

setInterval(() => {
  if (Date.now() - Math.max(link.heard, attempt.began) > silence) attempt.abort();
  if (link.live) tick();
}, 1000);
watch();
