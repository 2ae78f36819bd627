
"use strict";
const $ = (id) => document.getElementById(id);

// make returns an element; texts come from the log and are never read as HTML.
function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawn(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return parent.appendChild(made);
}

const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });

// lasting tells seconds the way people say them.
function lasting(seconds) {
  if (seconds < 1) return Math.max(0, Math.round(seconds * 1000)) + " ms";
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
  return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
}

const since = (time) => (Date.now() - new Date(time)) / 1000;

let latest;

function show(now) {
  latest = now;
  document.title = now.state + (now.ready ? " · ready" : " · not ready") + " · etcd-wrapper";
  if ($("state").textContent !== now.state) {
    $("state").textContent = now.state;
    follow(now.state);
  }
  $("ready").textContent = now.ready ? "ready" : "not ready";
  $("ready").className = now.ready ? "pill good" : "pill";
  $("reason").textContent = now.reason;
  showFacts();
  $("checks").replaceChildren(...now.checks.map((check, i) => checkItem(check, now.checks[i + 1], now.state)));
  $("steps").replaceChildren(...now.transitions.toReversed().map(stepRow));
  light(now);
}

function showFacts() {
  const now = latest;
  const facts = [["since", clock(now.since) + ", for " + lasting(Math.max(1, Math.floor(since(now.since))))]];
  if (now.attempt > 1) facts.push(["attempt", String(now.attempt)]);
  if (now.next_retry) facts.push(["next step", nextStep(now.next_retry)]);
  if (now.last_error) facts.push(["last trouble", clock(now.last_error.at) + " " + now.last_error.class + ": " + now.last_error.message, "trouble"]);
  if (now.validation) facts.push(["validation", now.validation.mode + ": " + now.validation.reason]);
  if (now.sidecar_word) facts.push(["sidecar said", now.sidecar_word]);
  facts.push(["last exit", now.last_exit]);
  if (now.member_id) facts.push(["member", now.member_id]);
  for (const file of now.certificates ?? []) {
    const left = -since(file.expires);
    if (left < 72 * 3600) facts.push(["certificate", file.name + (left > 0 ? " expires in " + lasting(left) : " has expired: " + file.path), "trouble"]);
  }
  facts.push(["versions", "wrapper " + now.versions.wrapper + ", etcd " + now.versions.etcd + ", " + now.versions.go]);
  $("facts").replaceChildren(...facts.flatMap(([name, text, kind]) => [make("dt", "", name), make("dd", kind, text)]));
}

function nextStep(at) {
  const left = -since(at);
  return left > 0 ? "within " + lasting(Math.ceil(left)) : "now";
}

// checkItem tells a reason once for checks that share it, and alarms nobody before etcd runs.
function checkItem(check, next, state) {
  const item = make("li", state === "Serving" ? check.status : "quiet");
  item.append(make("span", "verdict", check.status), make("span", "", check.name));
  if (check.reason && check.reason !== next?.reason) item.append(make("span", "why", check.reason));
  return item;
}

function stepRow(step) {
  const row = make("tr");
  const way = step.from === step.to ? step.from + " stays" : step.from + " → " + step.to;
  row.append(make("td", "", clock(step.at)), make("td", "", way), make("td", "", step.times > 1 ? "×" + step.times : ""),
    make("td", "", lasting(step.after)), make("td", "", step.reason));
  return row;
}

// light marks the current state and every way that was gone.
function light(now) {
  const ways = new Map();
  const visits = new Map([["Query", 1]]);
  for (const edge of now.edges) {
    if (edge.from === edge.to) continue;
    const id = "edge_" + edge.from + "_" + edge.to;
    const way = ways.get(id) ?? { times: 0, last: edge.last };
    ways.set(id, { times: way.times + edge.times, last: edge.last > way.last ? edge.last : way.last });
    visits.set(edge.to, (visits.get(edge.to) ?? 0) + edge.times);
  }
  for (const node of document.querySelectorAll("#diagram [id^=state_]")) lightState(node, now, visits);
  for (const [id, way] of ways) lightWay($(id), way);
}

function lightState(node, now, visits) {
  const name = node.id.slice("state_".length);
  const count = visits.get(name) ?? 0;
  const current = name === now.state;
  node.classList.toggle("visited", count > 0);
  node.classList.toggle("current", current);
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", name + ", entered " + count + " times" + (current ? ", current" : ""));
  if (current) node.setAttribute("aria-current", "step");
  else node.removeAttribute("aria-current");
}

function lightWay(edge, way) {
  if (!edge) return;
  edge.classList.add("visited");
  const text = "×" + way.times + " " + clock(way.last);
  let badge = edge.querySelector(".badge");
  if (!badge) badge = newBadge(edge);
  const label = badge.querySelector("text");
  label.textContent = text;
  const width = label.getComputedTextLength() + 14;
  const right = Math.max(width, Number(badge.dataset.right));
  badge.setAttribute("transform", "translate(" + right + " " + badge.dataset.top + ")");
  badge.querySelector("rect").setAttribute("x", -width);
  badge.querySelector("rect").setAttribute("width", width);
}

// newBadge puts a label to the left of the arrow's line, since the arrow's own text is on its right, and near its start,
// where lines still lie apart.
function newBadge(edge) {
  const path = edge.querySelector("path");
  const at = path.getPointAtLength(Math.min(85, path.getTotalLength() / 2));
  const badge = drawn("g", { class: "badge", "data-right": at.x - 5, "data-top": at.y - 8 }, edge);
  drawn("rect", { height: 16, rx: 8 }, badge);
  drawn("text", { x: -7, y: 12, "text-anchor": "end" }, badge);
  return badge;
}

// follow keeps the current state in sight where the diagram is larger than its box.
function follow(state) {
  const box = $("diagram");
  const node = $("state_" + state);
  if (!node) return;
  const seen = box.getBoundingClientRect();
  const at = node.getBoundingClientRect();
  box.scrollBy(at.x + at.width / 2 - seen.x - seen.width / 2, at.y + at.height / 2 - seen.y - seen.height / 2);
}

// A browser asks again by itself when the stream breaks, but not when it is refused.
function watch() {
  const stream = new EventSource("lifecycle?watch");
  stream.onopen = () => link("live", "");
  stream.onmessage = (event) => show(JSON.parse(event.data));
  stream.onerror = () => {
    link(latest && latest.state === "Terminated" ? "the process has ended" : "no connection; trying again", "lost");
    if (stream.readyState === EventSource.CLOSED) setTimeout(watch, 2000);
  };
}

function link(text, kind) {
  $("link").textContent = text;
  $("link").className = kind;
}

setInterval(() => { if (latest) showFacts(); }, 1000);
watch();
