
// health is ok, degraded or failed, whatever a wrapper of another version says.
const health = (now) => !now.ready ? "failed" : now.headline?.health === "degraded" ? "degraded" : "ok";
const readyWord = (now) => ({ ok: "ready", degraded: "ready, but", failed: "not ready" })[health(now)];
const marks = { ok: "✓", degraded: "!", failed: "✗" }; // beside the colours, which not everybody tells apart
const phase = (now) => now.headline?.phase ?? now.state;

// tiles are what people look for first: each with how well it is, one thing to read and one line of cause.
const tiles = (now) => [backupTile(now), databaseTile(now), memberTile(now)];
const concern = (now, about) => now.headline?.concerns?.find((each) => each.startsWith(about + ": "))?.slice(about.length + 2);

function backupTile(now) {
  const b = now.backup;
  if (!b) return now.standalone ? ["Backups", "degraded", "none", "no --backup-store"] : ["Backups", "", "the sidecar's", "not made here"];
  const proof = b.last_verified;
  const value = b.behind_seconds >= 1 ? lasting(b.behind_seconds) + " behind" : b.revision ? "up to date" : "none yet";
  const cause = b.trouble?.message ?? concern(now, "backups") ?? (proof ? "restore test " + (proof.passed ? "passed " : "failed ") + ago(proof.at) : "not tested yet");
  return ["Backups", proof && !proof.passed ? "failed" : concern(now, "backups") ? "degraded" : b.revision ? "ok" : "", value, cause];
}

const nearlyFull = 0.8; // of the quota

function databaseTile(now) {
  if (!now.db_size) return ["Database", "", "not open", "etcd does not run"];
  const part = now.quota ? now.db_size / now.quota : 0;
  const full = concern(now, "no space");
  return ["Database", full ? "failed" : part >= nearlyFull ? "degraded" : "ok", now.quota ? (100 * part).toFixed(0) + "% of " + bytes(now.quota) : bytes(now.db_size),
    full ?? bytes(now.db_in_use ?? 0) + " in use" + (part >= nearlyFull ? ": nearly full" : "")];
}

function memberTile(now) {
  const all = now.peers ?? [], missing = all.filter((peer) => !peer.active).map((peer) => peer.name || peer.id);
  if (!all.length) return ["Members", "", "unknown", "etcd does not run"];
  const leader = all.find((peer) => peer.leader);
  const cause = missing.length ? missing.join(", ") + (missing.length > 1 ? " are" : " is") + " missing" : leader ? "leader " + (leader.name || leader.id) : "no leader";
  return ["Members", concern(now, "quorum") || !leader ? "failed" : missing.length ? "degraded" : "ok", (all.length - missing.length) + " of " + all.length, cause];
}

function showTiles(now) {
  $("tiles").replaceChildren(...tiles(now).map(([title, is, value, cause]) => make("li", is,
    make("h3", "", title + " ", make("span", "mark", marks[is] ?? ""), make("span", "unseen", is)), make("strong", "", value), make("span", "why", cause))));
}
