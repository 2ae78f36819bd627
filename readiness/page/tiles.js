
// health is ok, degraded or failed.
const health = (now) => !now.ready ? "failed" : now.headline?.health === "degraded" ? "degraded" : "ok";
// worst returns the worst health of all conditions, because a member that rejects writes is ready but shown in red.
const worst = (now) => conditions(now).some((each) => each.health === "failed") ? "failed" : health(now);
const readyWord = (now) => ({ ok: "ready", degraded: "degraded", failed: "not ready" })[health(now)];
const marks = { ok: "✓", degraded: "!", failed: "✗" }; // in addition to colours
const phase = (now) => now.headline?.phase ?? now.state;
const conditions = (now) => now.headline?.conditions ?? [];
const condition = (now, about) => conditions(now).find(({ subject }) => subject === about);
const clause = ({ subject, message }) => subject + ": " + message;

// A tile has a title, a health, a value and a line of details. Its health is at most as bad as the conditions, which it does not repeat.
const tiles = (now) => [backupTile(now), databaseTile(now), memberTile(now)];

function backupTile(now) {
  const b = now.backup, r = now.recovery;
  if (recovers(now)) return restores(r.state) ? ["Backups", "", "in use", "source of the restore"] : ["Backups", "", "paused", "until etcd runs"];
  if (!b) return now.standalone ? ["Backups", "", "none", "no --backup-store"] : ["Backups", "", "sidecar", "not made by this process"];
  const test = b.last_verification, wrong = condition(now, "backups");
  const value = test && !test.passed ? "test failed" : b.lag_seconds >= 1 ? lasting(b.lag_seconds) + " behind" : b.revision ? "up to date" : "none yet";
  const detail = b.lag_revisions ? b.lag_revisions + " revisions queued" : !test ? "not tested yet" : "restore test " + (test.passed ? "passed " : "failed ") + ago(test.at);
  return ["Backups", wrong ? wrong.health : b.revision ? "ok" : "", value, detail];
}

function databaseTile(now) {
  const r = now.recovery;
  if (recovers(now) && r.total_bytes) return ["Database", "", (100 * r.restored_bytes / r.total_bytes).toFixed(0) + "% restored", bytes(r.total_bytes) + " in total"];
  if (!now.db_size) return ["Database", "", "closed", "etcd is not running"];
  const wrong = condition(now, "no space") ?? condition(now, "database");
  return ["Database", wrong?.health ?? "ok", now.quota ? (100 * now.db_size / now.quota).toFixed(0) + "% of " + bytes(now.quota) : bytes(now.db_size),
    condition(now, "no space") ? "read-only" : bytes(now.db_in_use ?? 0) + " in use"];
}

function memberTile(now) {
  const all = now.peers ?? [], missing = all.filter((peer) => !peer.active).map((peer) => peer.name || peer.id);
  if (!all.length) return ["Members", "", "unknown", "etcd is not running"];
  const leader = all.find((peer) => peer.leader), wrong = condition(now, "quorum");
  const detail = missing.length ? missing.join(", ") + " missing" : leader ? "leader " + (leader.name || leader.id) : "no leader";
  return ["Members", wrong?.health ?? (missing.length || !leader ? "" : "ok"), (all.length - missing.length) + " of " + all.length, detail];
}

function showTiles(now) {
  $("now").className = "now tile " + worst(now);
  $("lasts").replaceChildren("for ", ticking(() => lasting(Math.max(1, Math.floor(since(now.ready ? now.ready_since : now.phase_since))))));
  $("tiles").replaceChildren(...tiles(now).map(([title, is, value, detail]) => {
    const line = make("span", "why", detail);
    line.title = plain(detail);
    return make("li", "tile " + is, make("h3", "", title + " ", make("span", "mark", marks[is] ?? ""), make("span", "unseen", is)), make("strong", "", value), line);
  }));
}

// showCause shows the conditions, or nothing if there are none.
function showCause(now) {
  $("cause").className = "cause " + worst(now) + (now.state === "Serving" ? " serves" : now.state === "Terminated" ? " ended" : "");
  $("cause").hidden = health(now) === "ok" && $("ended").hidden;
  if (fresh("conditions", conditions(now))) $("conditions").replaceChildren(...conditions(now).map(conditionItem));
  const [short] = shortened(now.reason), fold = now.reason.length > 120 && !now.reason.match(ways);
  if (fresh("reason", now.reason)) $("reason").replaceChildren(...(fold ? [folded("reason", [make("span", "", short)], [make("p", "", ...sentence(now.reason))])] : sentence(now.reason)));
}

function conditionItem(each) {
  const [short, long] = shortened(each.message);
  const more = make("div", "more", ...(long ? [make("p", "", ...sentence(each.message))] : []),
    make("p", "", "Start with ", make("code", "", each.command), " ", copier(each.command)), make("p", "", "Runbook: ", runbook(each.runbook)));
  return make("li", each.health, folded(each.subject, [make("strong", "", each.subject), ": " + short], [more]));
}

// shortened returns a message without its cause, and whether the message had a cause.
function shortened(message) {
  const short = /^(?:(?!: |; | \().)+/.exec(message)?.[0] ?? message;
  return [short, short !== message];
}

// folded shows details on demand. Open details stay open when they are redrawn.
const unfolded = new Set();
function folded(key, summary, content) {
  const made = make("details", "", make("summary", "", ...summary), ...content);
  made.open = unfolded.has(key);
  made.addEventListener("toggle", () => unfolded[made.open ? "add" : "delete"](key));
  return made;
}

// runbook returns a link to the documentation if its URL is known.
function runbook(page) {
  const base = document.documentElement.dataset.docs;
  if (!base) return make("code", "", page);
  const link = make("a", "", page);
  link.href = base + page;
  return link;
}
