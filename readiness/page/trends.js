
// Trends: a chart for each time series, starting at 0, with a time axis, an optional threshold, and values on hover.
const milliseconds = (s) => s < 1 ? Number((1000 * s).toPrecision(2)) + " ms" : lasting(s);
const perSecond = (n) => (n < 100 ? Number(n.toPrecision(2)) : n.toFixed(0)) + "/s";
const series = [
  { name: "Writes", field: "write_seconds", format: milliseconds }, { name: "Reads", field: "read_seconds", format: milliseconds },
  { name: "Log fsync, p99", field: "fsync_seconds", format: milliseconds, limit: () => 0.01 },
  { name: "Database", field: "db_size", format: bytes, second: "db_in_use", limit: (now) => now.quota },
  { name: "Backup lag", field: "backup_lag_seconds", format: milliseconds, limit: () => 300 },
  { name: "Revisions", field: "revisions_per_second", format: perSecond },
];
const measured = (points) => points.filter((point) => point !== null);

function showTrends(now) {
  const trends = now.trends;
  const drawable = trends ? series.filter(({ field }) => measured(trends[field]).length) : [];
  $("trends").hidden = !drawable.length;
  if (!drawable.length || !fresh("trends", [trends, now.quota])) return;
  $("trends-title").textContent = "The last " + lasting(trends.interval * trends.write_seconds.length);
  $("series").replaceChildren(...drawable.map((each, i) => trendItem(now, each, i)));
}

// trendItem draws a threshold only if the series comes close to it, because a distant threshold would flatten the chart.
function trendItem(now, { name, field, format, second, limit }, i) {
  const trends = now.trends, points = trends[field], highest = Math.max(...measured(points)), last = measured(points).at(-1);
  const threshold = limit?.(now), near = threshold && highest > threshold / 2, top = near ? Math.max(highest, threshold) : highest;
  const chart = drawn("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" }, "chart" + i % 4);
  chart.append(drawn("path", { d: line(points, top) }, "solid"));
  if (second) chart.append(drawn("path", { d: line(trends[second], top) }, "dashed"));
  if (near) chart.append(drawn("path", { d: "M0 " + height(threshold, top) + "H100" }, "limit"));
  const cursor = drawn("path", { d: "" }, "cursor");
  chart.append(cursor);
  const value = make("strong", near && last > threshold ? "over" : "", format(last));
  const labels = ["max " + format(highest), near && "limit " + format(threshold), second && measured(trends[second]).length && "dashed: in use, " + format(measured(trends[second]).at(-1))];
  const start = new Date(new Date(trends.until) - 1000 * trends.interval * (points.length - 1));
  chart.addEventListener("pointermove", ({ clientX }) => {
    const box = chart.getBoundingClientRect(), at = Math.round(Math.min(1, Math.max(0, (clientX - box.left) / box.width)) * (points.length - 1));
    value.textContent = (points[at] === null ? "no value" : format(points[at])) + " at " + clock(new Date(start.getTime() + 1000 * trends.interval * at));
    cursor.setAttribute("d", "M" + across100(at, points) + " 0V40");
  });
  chart.addEventListener("pointerleave", () => {
    value.textContent = format(last);
    cursor.setAttribute("d", "");
  });
  return make("li", "", make("h3", "", name), value, chart, make("span", "axis", moment(start), moment(trends.until)), make("span", "why", labels.filter(Boolean).join(" · ")));
}

const height = (point, top) => (38 - 36 * point / (top || 1)).toFixed(1);
const across100 = (i, points) => (points.length > 1 ? 100 * i / (points.length - 1) : 100).toFixed(1);

// line returns the path of a time series, with gaps for missing points.
function line(points, top) {
  let pen = "M";
  return points.map((point, i) => {
    if (point === null) {
      pen = "M";
      return "";
    }
    const drawn = pen + across100(i, points) + " " + height(point, top) + (pen === "M" ? "h.01" : "");
    pen = "L";
    return drawn;
  }).join("");
}
