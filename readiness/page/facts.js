
// called returns the name of the pod or the member.
const called = (now) => now.pod || now.member_name || "etcd-wrapper";

// showHeader shows the cluster and links to the other members. On loopback, links would not work, so it shows the command instead.
function showHeader(now) {
  const b = now.backup ?? {};
  const about = [b.owner && "cluster " + b.owner, !b.owner && now.cluster_id && "cluster " + now.cluster_id, b.generation && "generation " + b.generation].filter(Boolean).join(", ");
  const others = (now.peers ?? []).filter((peer) => peer.id !== now.member_id && peer.name);
  if (!fresh("header", [about, others])) return;
  $("cluster").textContent = plain(about);
  $("others").replaceChildren(...others.map((peer) => make("li", "", memberLink(peer))));
}

function memberLink({ name, urls }) {
  const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname), port = location.port || "9095";
  if (local || !URL.canParse(urls?.[0])) return copier("kubectl port-forward " + name + " " + port, name);
  const link = make("a", "", name);
  link.href = location.protocol + "//" + new URL(urls[0]).hostname + ":" + port + "/";
  return link;
}

function showFacts(now) {
  const facts = [
    ["in " + now.state + " since", [moment(now.since), ", for ", ticking(() => lasting(Math.max(1, Math.floor(since(now.since)))))]],
    now.attempt > 1 && ["attempt", [String(now.attempt)]],
    now.next_retry && ["next step", [ticking(() => nextStep(now.next_retry))]],
    now.last_error && currentError(now),
    now.validation && ["validation", [now.validation.mode + ": " + now.validation.reason]],
    now.sidecar_status && ["sidecar", [now.sidecar_status]],
    ...identity(now),
    ...recovery(now),
    ...maintenance(now.maintenance),
    ...backups(now),
    ...renewed(now.leases ?? []),
    ...ending(now.certificates ?? []),
    now.started && ["process started", [moment(now.started), ", ", ticking(() => ago(now.started))]],
    now.last_exit && ["last exit", [now.last_exit]],
  ].filter(Boolean);
  $("facts").replaceChildren(...facts.flatMap(([name, content, kind]) => [make("dt", "", name), make("dd", kind, ...content)]));
}

function nextStep(at) {
  const left = -since(at);
  return left > 0 ? "within " + lasting(Math.ceil(left)) : "now";
}

// currentError returns the last error, without a message that the reason of the state contains.
function currentError(now) {
  const { at, class: kind, message, over, ended } = now.last_error;
  const text = [kind + ", ", moment(at), ", ", ticking(() => ago(at)), ...(now.reason.includes(message) ? [] : [": ", ...sentence(message)])];
  if (!over && !ended && !(now.state === "Serving" && now.ready)) return ["error", text, "problem"];
  const end = ended ?? (now.state === "Serving" && new Date(now.since) > new Date(at) ? now.since : undefined);
  return ["last error", [...text, ...(end ? [", resolved ", moment(end)] : [", resolved"])], "quiet"];
}

function identity(now) {
  const named = (id) => now.peers?.find((peer) => peer.id === id)?.name || id;
  return [
    (now.member_name || now.member_id) && ["member", [[now.member_name, now.member_id].filter(Boolean).join(", ")]],
    now.cluster_id && ["cluster", [now.cluster_id + (now.new_cluster ? "; created by this run in an empty data directory" : "")]],
    now.leader && ["leader", [named(now.leader) + (now.term ? ", term " + now.term : "")]],
    now.db_size && ["database", [database(now)]],
    now.volume_size && ["volume", [bytes(now.volume_free ?? 0) + " of " + bytes(now.volume_size) + " free"]],
  ];
}

function database(now) {
  const used = now.db_in_use ? ", " + bytes(now.db_in_use) + " in use" : "";
  const quota = now.quota ? "; " + (100 * now.db_size / now.quota).toFixed(0) + "% of the quota of " + bytes(now.quota) : "";
  return bytes(now.db_size) + used + quota;
}

// recovery returns the state of the recovery and what was restored.
function recovery(now) {
  const r = now.recovery;
  if (!r) return [];
  const is = steps.find(({ state }) => state === r.state)?.doing ?? r.state.toLowerCase();
  return [
    ["recovery", [is + ", since ", moment(r.since), ...(now.reason.includes(r.reason) ? [] : [": ", ...sentence(r.reason)])], r.state === "Refused" && "problem"],
    r.loss && ["restored", [r.loss]],
  ];
}

// maintenance returns the current and the last defragmentation, and the readers of the whole database.
function maintenance(u) {
  if (!u) return [];
  const last = u.last_defragmentation, kept = u.phase === "running" ? " (" + (100 * u.progress).toFixed(0) + "%)" : "";
  return [
    u.phase !== "idle" && ["defragmentation", [u.phase + kept + ": " + u.reason]],
    last && ["last defragmentation", [(last.error ? "failed, by " + last.origin + ": " + last.error
      : "by " + last.origin + " in " + last.seconds.toFixed(1) + " s: " + bytes(last.bytes_before) + " → " + bytes(last.bytes_after)) + ", ",
    moment(last.at), ", ", ticking(() => ago(last.at))]],
    ...(u.readers ?? []).map((reader) => ["readers", [reader.name + ", since ", moment(reader.since)]]),
  ].filter(Boolean);
}

// backups returns the state of the store, the restore points and errors.
function backups(now) {
  const b = now.backup;
  if (!b) return now.standalone && !recovers(now) ? [["backups", ["none (no --backup-store)"]]] : []; // otherwise a sidecar makes the backups
  const full = b.last_full_snapshot, run = b.running_full_snapshot, proof = b.last_verification, range = b.window;
  return [
    ["backups", [b.store + ", this member is " + ({ writer: "the writer", standby: "on standby" }[b.role] ?? b.role)]],
    b.cluster && ["backups of", [b.cluster + (b.owner ? " of " + b.owner : "") + (b.generation ? ", generation " + b.generation : "")]],
    b.problem && ["backups fail", ["since ", moment(b.problem.since), ", " + b.problem.count + (b.problem.count === 1 ? " attempt" : " attempts") + ", next retry ",
      ticking(() => b.problem.next_retry ? nextStep(b.problem.next_retry) : "with the next change")], "problem"],
    b.revision && ["in the store", [(b.lag_revisions ? "revisions up to " + b.revision + "; " + b.lag_revisions + " behind for " + lasting(b.lag_seconds)
      : "all revisions up to " + b.revision) + (b.stored_bytes ? "; " + bytes(b.stored_bytes) + " in total" : "")]],
    ...(b.windows ?? (range ? [range] : [])).map((span) => ["restore points", ["revisions " + span.from_revision + " to " + span.to_revision + ", ", moment(span.from), " to ", moment(span.to)]]),
    full && ["last full snapshot", ["revision " + full.revision + ", " + bytes(full.bytes) + ", ", moment(full.at), ", ", ticking(() => ago(full.at)), ": " + full.reason]],
    run && ["running full snapshot", [run.step + (run.total_bytes ? ", " + bytes(run.sent_bytes) + " of " + bytes(run.total_bytes) : "")
      + (run.remaining_seconds ? ", " + lasting(run.remaining_seconds) + " left" : "") + ": " + run.reason]],
    !run && b.next_full_snapshot && ["next full snapshot", [moment(b.next_full_snapshot)]],
    ["last restore test", proof ? [(proof.passed ? "revision " : "FAILED at revision ") + proof.revision + ", ", moment(proof.at), ", ", ticking(() => ago(proof.at)), ": " + proof.reason]
      : ["never"], proof && !proof.passed ? "problem" : ""],
    b.spool_bytes && ["spool", [bytes(b.spool_bytes) + " of " + bytes(b.spool_limit) + " queued on the volume"]],
  ].filter(Boolean);
}

// renewed returns the leases that the member renews.
function renewed(leases) {
  return leases.map((lease) => {
    const says = lease.renewed ? [lease.name + ": " + lease.holder + ", renewed ", ticking(() => ago(lease.renewed))] : [lease.name + ", not renewed yet"];
    return ["lease", [...says, lease.problem ? ", failing" : ""], lease.problem && "problem"];
  });
}

// ending returns the certificates that have expired or expire soon.
function ending(certificates) {
  return certificates.filter((file) => -since(file.not_after) < 72 * 3600).map((file) => {
    const words = () => since(file.not_after) < 0 ? " expires in " + lasting(-since(file.not_after)) + ", " : " has expired, ";
    return ["certificate", [file.name, ticking(words), moment(file.not_after), ": " + file.path], "problem"];
  });
}

// checkItems returns a line for each check, or a single line if all checks fail for the same reason.
function checkItems(now) {
  const { status, reason } = now.checks[0] ?? {};
  const alike = now.state !== "Serving" && reason && now.checks.every((check) => check.status === status && check.reason === reason);
  if (alike) return [make("li", "quiet", "none yet: " + reason)];
  return now.checks.map((check, i) => checkItem(now, check, now.checks[i + 1]));
}

// checkItem shows a reason only once, and not if a condition contains it. Checks have no colour before etcd is running.
function checkItem(now, check, next) {
  const item = make("li", now.state === "Serving" ? check.status : "quiet", make("span", "verdict", check.status), make("span", "", check.name));
  if (check.reason && check.reason !== next?.reason && !conditions(now).some(({ message }) => message === check.reason)) item.append(make("span", "why", ...sentence(check.reason)));
  return item;
}

function peerItem(peer) {
  const roles = [peer.leader && "leader", peer.learner && "learner"].filter(Boolean);
  const item = make("li", peer.active ? "ok" : "failed", make("span", "verdict", peer.active ? "active" : "missing"),
    make("span", "", [peer.name || "unnamed", ...roles].join(", ")));
  item.append(make("span", "why", [peer.id, ...(peer.urls ?? [])].filter(Boolean).join(" ")));
  return item;
}

function stepRow(step) {
  const way = step.from === step.to ? step.from + ": " + step.event : step.from + " → " + step.to;
  return make("tr", "", make("td", "", moment(step.at)), make("td", "", way), make("td", "", step.count > 1 ? "×" + step.count : ""),
    make("td", "", step.after_seconds ? lasting(step.after_seconds) : ""), make("td", "", step.reason));
}
