
// Restore points on a time axis: a bar for each window in the colour of its generation, with ticks for full snapshots. A mark above a
// tick is a passed restore test; a mark below is a failed one.
const past = { from: 0, to: 1, spans: [] };

const drawn = (name, attributes, className) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.setAttribute("class", className);
  return made;
};
const across = (time) => 1000 * (new Date(time) - past.from) / Math.max(1, past.to - past.from);
const hue = (span) => "hue" + span.generation % 4;

function showBack(now) {
  const spans = now.backup?.windows ?? [];
  $("back").hidden = !spans.length;
  if (!spans.length) return;
  Object.assign(past, { spans, from: Math.min(...spans.map((span) => new Date(span.from))), to: present() });
  $("bar").replaceChildren(...spans.flatMap(drawnSpan));
  $("bar-from").replaceChildren(moment(past.from));
  $("bar-to").textContent = "now";
  const generations = [...new Map(spans.map((span) => [span.generation, span])).values()];
  $("generations").replaceChildren(...generations.map((span) => make("li", "", make("span", "swatch " + hue(span)), "generation " + span.generation + tests(spans, span.generation))));
  sayHow();
}

function drawnSpan(span) {
  const x = across(span.from);
  return [
    drawn("rect", { x, y: 14, width: Math.max(2, across(span.to) - x), height: 22 }, hue(span)),
    ...(span.full_snapshots ?? []).map((full) => drawn("rect", { x: across(full.at) - 1, y: 8, width: 2, height: 34 }, "tick")),
    ...(span.full_snapshots ?? []).filter((full) => full.restore_test).map((full) => drawn("rect", { x: across(full.at) - 3, y: full.restore_test === "passed" ? 0 : 36, width: 6, height: 8 }, "test " + full.restore_test)),
  ];
}

function tests(spans, generation) {
  const fulls = spans.filter((span) => span.generation === generation).flatMap((span) => span.full_snapshots ?? []);
  const count = (test) => fulls.filter((full) => full.restore_test === test).length;
  return ": " + fulls.length + (fulls.length === 1 ? " full snapshot" : " full snapshots") + (count("passed") ? ", " + count("passed") + " tested" : "") +
    (count("failed") ? ", " + count("failed") + " failed" : "");
}

// sayHow shows the flags for restoring the selected time. A time between two windows is moved to the end of the earlier one.
function sayHow() {
  const wanted = past.from + $("back-to").value / 1000 * (past.to - past.from);
  const begun = past.spans.filter((span) => new Date(span.from) <= wanted).at(-1) ?? past.spans[0];
  const at = new Date(Math.floor(Math.min(Math.max(wanted, new Date(begun.from)), new Date(begun.to)) / 1000) * 1000);
  const time = at.toISOString().replace(".000Z", "Z");
  $("back-at").replaceChildren("To restore ", moment(at), " of generation " + begun.generation + ", start with:");
  const flags = ["--restore-to=time:" + time, "--restore-id=back-to-" + time.replace(/[-:]/g, "").toLowerCase()];
  $("back-copy").dataset.copies = flags.join(" ");
  $("back-line").replaceChildren(make("span", "whole", flags[0]), " ", make("span", "whole", flags[1]));
  $("back-to").setAttribute("aria-valuetext", clock(at) + ", generation " + begun.generation);
}

$("back-to").addEventListener("input", sayHow);
$("bar").addEventListener("click", (event) => {
  const box = $("bar").getBoundingClientRect();
  $("back-to").value = Math.round(1000 * (event.clientX - box.left) / box.width);
  sayHow();
});
