
// The end of the process, as far as it is known: of this one by its last steps, of the one before by what the next one found.
const lastStep = (now) => now.transitions.findLast((step) => step.to === "Terminating" && step.from !== step.to)?.reason;

function endedWith(why) {
  $("ended").hidden = !why;
  if (fresh("ended", why)) $("ended").replaceChildren(...sentence(why));
}

let watched = ""; // how the process ended that this page has watched before this one

function showEnd(before, now) {
  if (before && before.started !== now.started) {
    watched = "The process that was watched here before has ended: " + (before.state === "Terminated" ? lastStep(before) ?? before.reason
      : [now.last_exit, now.last_exit_reason].filter(Boolean).join(": ")) + ".";
  }
  endedWith(now.state === "Terminated" ? "The process has ended: " + [lastStep(now), now.reason].filter(Boolean).join("; ") + "." : watched);
}

// Recovery's steps take the machine's place while it works. Those that this page has seen are framed.
const steps = JSON.parse($("steps-of-recovery").textContent);
const passed = new Set();

function showRecovery(now) {
  const r = now.recovery, works = r && steps.some(({ state }) => state === r.state) && phase(now).startsWith("Recovery: ");
  $("recovery").hidden = !works;
  document.querySelector(".machine").hidden = Boolean(works);
  if (!works) return passed.clear();
  passed.add(r.state);
  $("progress").hidden = !r.total_bytes;
  $("progress").value = r.total_bytes ? r.restored_bytes / r.total_bytes : 0;
  $("left").textContent = r.total_bytes ? bytes(r.restored_bytes) + " of " + bytes(r.total_bytes) + (r.remaining_seconds ? ", " + bytes(r.bytes_per_second) + "/s, " + lasting(r.remaining_seconds) + " left" : "") : "";
  if (fresh("recovery", r.state)) $("recovery-steps").replaceChildren(...steps.map(({ state, doing }) => {
    const item = make("li", state === r.state ? "current" : passed.has(state) ? "visited" : "", doing);
    if (state === r.state) item.setAttribute("aria-current", "step");
    return item;
  }));
}
