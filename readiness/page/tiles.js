
// health is ok, degraded or failed, whatever a wrapper of another version says.
const health = (now) => !now.ready ? "failed" : now.headline?.health === "degraded" ? "degraded" : "ok";
const readyWord = (now) => ({ ok: "ready", degraded: "degraded", failed: "not ready" })[health(now)];
const marks = { ok: "✓", degraded: "!", failed: "✗" }; // beside the colours, which not everybody tells apart
const phase = (now) => now.headline?.phase ?? now.state;

// tiles are what people look for first: each with how well it is, one thing to read and one line of cause. None alarms without a condition
// of the headline, so what is green says that there is none.
const tiles = (now) => [backupTile(now), databaseTile(now), memberTile(now)];
const clause = ({ subject, message }) => subject + ": " + message;
const condition = (now, about) => now.headline?.conditions?.find(({ subject }) => subject === about)?.message;
const wellUnless = (wrong) => wrong ? "degraded" : "ok";

function backupTile(now) {
  const b = now.backup;
  if (!b) return now.standalone ? ["Backups", "", "none", "no --backup-store"] : ["Backups", "", "the sidecar's", "not made here"];
  const proof = b.last_verification, wrong = condition(now, "backups");
  const value = b.lag_seconds >= 1 ? lasting(b.lag_seconds) + " behind" : b.revision ? "up to date" : "none yet";
  const cause = b.problem?.message ?? wrong ?? (proof ? "restore test " + (proof.passed ? "passed " : "failed ") + ago(proof.at) : "not tested yet");
  return ["Backups", wrong && proof && !proof.passed ? "failed" : wrong || b.revision ? wellUnless(wrong) : "", value, cause];
}

function databaseTile(now) {
  if (!now.db_size) return ["Database", "", "not open", "etcd does not run"];
  const refused = condition(now, "no space"), full = condition(now, "database");
  return ["Database", refused ? "failed" : wellUnless(full), now.quota ? (100 * now.db_size / now.quota).toFixed(0) + "% of " + bytes(now.quota) : bytes(now.db_size),
    refused ?? full ?? bytes(now.db_in_use ?? 0) + " in use"];
}

function memberTile(now) {
  const all = now.peers ?? [], missing = all.filter((peer) => !peer.active).map((peer) => peer.name || peer.id);
  if (!all.length) return ["Members", "", "unknown", "etcd does not run"];
  const leader = all.find((peer) => peer.leader), wrong = condition(now, "quorum");
  const cause = missing.length ? missing.join(", ") + (missing.length > 1 ? " are" : " is") + " missing" : leader ? "leader " + (leader.name || leader.id) : "no leader";
  return ["Members", wrong && !now.ready ? "failed" : wrong ? "degraded" : missing.length || !leader ? "" : "ok", (all.length - missing.length) + " of " + all.length, cause];
}

function showTiles(now) {
  $("now").className = "now tile " + health(now);
  $("lasts").replaceChildren("for ", ticking(() => lasting(Math.max(1, Math.floor(since(now.ready ? now.ready_since : now.phase_since))))));
  $("tiles").replaceChildren(...tiles(now).map(([title, is, value, cause]) => make("li", "tile " + is,
    make("h3", "", title + " ", make("span", "mark", marks[is] ?? ""), make("span", "unseen", is)), make("strong", "", value), make("span", "why", cause))));
}

// showCause takes no room where all is well.
function showCause(now) {
  $("cause").className = "cause " + health(now);
  $("cause").hidden = health(now) === "ok" && $("ended").hidden;
}
