
// The last hours: a line for each series, from nothing to the highest point, with what it is now and what it was at most.
const milliseconds = (s) => s < 1 ? Number((1000 * s).toPrecision(2)) + " ms" : lasting(s);
const perSecond = (n) => (n < 100 ? Number(n.toPrecision(2)) : n.toFixed(0)) + "/s";
const series = [
  ["Writes", "write_seconds", milliseconds], ["Reads", "read_seconds", milliseconds], ["Log fsync, p99", "fsync_seconds", milliseconds],
  ["Database", "db_size", bytes, "db_in_use"], ["Backup lag", "backup_lag_seconds", milliseconds], ["Revisions", "revisions_per_second", perSecond],
];
const measured = (points) => points.filter((point) => point !== null);

function showTrends(now) {
  const trends = now.trends;
  const drawable = trends ? series.filter(([, field]) => measured(trends[field]).length) : [];
  $("trends").hidden = !drawable.length;
  if (!drawable.length || !fresh("trends", trends)) return;
  $("trends-title").textContent = "The last " + lasting(trends.interval * trends.write_seconds.length);
  $("series").replaceChildren(...drawable.map((each) => trendItem(trends, ...each)));
}

function trendItem(trends, name, field, say, second) {
  const points = trends[field], top = Math.max(...measured(points));
  const picture = drawn("svg", { viewBox: "0 0 100 32", preserveAspectRatio: "none", "aria-hidden": "true" }, "");
  picture.append(drawn("path", { d: line(points, top) }, "solid"));
  if (second) picture.append(drawn("path", { d: line(trends[second], top) }, "dashed"));
  const also = second && measured(trends[second]).length ? "; dashed: in use, " + say(measured(trends[second]).at(-1)) : "";
  return make("li", "", make("h3", "", name), make("strong", "", say(measured(points).at(-1))), picture, make("span", "why", "at most " + say(top) + also));
}

// line is the path of a series, with a gap where nothing was measured.
function line(points, top) {
  let pen = "M";
  return points.map((point, i) => {
    if (point === null) {
      pen = "M";
      return "";
    }
    const at = (points.length > 1 ? 100 * i / (points.length - 1) : 100).toFixed(1) + " " + (30 - 28 * point / (top || 1)).toFixed(1);
    const drawn = pen + at + (pen === "M" ? "h.01" : "");
    pen = "L";
    return drawn;
  }).join("");
}
