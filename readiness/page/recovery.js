
// The end of the process, as reported in its last transitions or by the next process.
const lastStep = (now) => now.transitions.findLast((step) => step.to === "Terminating" && step.from !== step.to)?.reason;

function endedWith(why) {
  $("ended").hidden = !why;
  if (fresh("ended", why)) $("ended").replaceChildren(...sentence(why));
}

let watched = ""; // how the previously shown process ended

function showEnd(before, now) {
  if (before && before.started !== now.started) {
    watched = "The previous process has ended: " + (before.state === "Terminated" ? lastStep(before) ?? before.reason
      : [now.last_exit, now.last_exit_reason].filter(Boolean).join(": ")) + ".";
  }
  endedWith(now.state === "Terminated" ? "The process has ended: " + [lastStep(now), now.reason].filter(Boolean).join("; ") + "." : watched);
}

// During a recovery, its steps replace the state machine. The steps depend on the kind of recovery; other steps appear once they have occurred.
const steps = JSON.parse($("steps-of-recovery").textContent);
const restoring = ["Examine", "Decide", "AskStore", "Build", "Prove", "Claim", "Preserve", "Install"];
const rejoining = ["Examine", "Decide", "AskPeers", "Leave", "Enter"];
const passed = new Set();
const restores = (state) => ["AskStore", "MakeRoom", "Build", "Prove", "Claim", "Preserve", "Install"].includes(state);
const recovers = (now) => Boolean(now.recovery) && steps.some(({ state }) => state === now.recovery.state) && phase(now).startsWith("Recovery: ");

// stepsFor returns the steps of a recovery in the given state, in order.
function stepsFor(current) {
  const path = restores(current) ? restoring : ["Leave", "Enter"].includes(current) ? rejoining : [];
  return steps.filter(({ state }) => state === current || passed.has(state) || path.includes(state));
}

function showRecovery(now) {
  const r = now.recovery, works = recovers(now);
  $("recovery").hidden = !works;
  document.querySelector(".machine").hidden = works;
  if (!works) return passed.clear();
  passed.add(r.state);
  const all = stepsFor(r.state), current = all.findIndex(({ state }) => state === r.state), heard = link.heard;
  $("progress").hidden = !r.total_bytes;
  $("progress").value = r.total_bytes ? r.restored_bytes / r.total_bytes : 0;
  const left = () => Math.max(0, r.remaining_seconds - ((link.live ? Date.now() : link.heard) - heard) / 1000);
  $("left").replaceChildren("Step " + (current + 1) + " of " + all.length, ...(r.total_bytes ? [": " + bytes(r.restored_bytes) + " of " + bytes(r.total_bytes),
    ...(r.remaining_seconds ? [", " + bytes(r.bytes_per_second) + "/s, ", ticking(() => left() ? lasting(Math.ceil(left())) + " left" : "almost done")] : [])] : []));
  if (fresh("recovery", [r.state, all.length])) $("recovery-steps").replaceChildren(...all.map(({ state, doing }, i) => {
    const item = make("li", i === current ? "current" : i < current ? "done" : "", make("span", "mark", i < current ? "✓" : String(i + 1)), make("span", "", doing));
    if (i === current) item.setAttribute("aria-current", "step");
    return item;
  }));
}
