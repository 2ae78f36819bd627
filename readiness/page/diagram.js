
const table = JSON.parse($("table").textContent);

// The user's selection: {from} for a state, {from, to} for a transition, or undefined.
let chosen;
let opener;

// gone returns the count and the time of the last transition of the matching edges.
function gone(now, holds) {
  const edges = now.transition_counts.filter(holds);
  return {
    times: edges.reduce((sum, edge) => sum + edge.count, 0),
    last: edges.map((edge) => edge.last).sort((a, b) => new Date(a) - new Date(b)).at(-1),
    spent: edges.reduce((sum, edge) => sum + edge.seconds, 0),
  };
}

const way = (from, to) => (edge) => edge.from === from && edge.to === to;
const row = (is) => (edge) => way(is.from, is.to)(edge) && edge.event === is.on && (edge.guard ?? "") === (is.when ?? "");
const entered = (now, state) => gone(now, (edge) => edge.to === state && edge.from !== state).times + (state === "Query" ? 1 : 0);
const times = (count) => count === 1 ? "once" : count + " times";
const short = (count) => "×" + (count < 1000 ? count : (count / 1000).toPrecision(2) + "k");

// light marks the current state and all transitions that have occurred.
function light(now) {
  for (const node of document.querySelectorAll("#diagram .node")) lightState(node, node.dataset.from, now);
  for (const edge of document.querySelectorAll("#diagram .edge")) lightWay(edge, gone(now, way(edge.dataset.from, edge.dataset.to)));
  showDetails(now);
}

function lightState(node, name, now) {
  const current = name === now.state;
  const count = entered(now, name);
  node.classList.toggle("visited", count > 0);
  node.classList.toggle("current", current);
  node.classList.toggle("ready", current && now.ready);
  node.classList.toggle("degraded", current && health(now) === "degraded");
  node.setAttribute("aria-label", name + ", " + (count ? "entered " + times(count) : "not entered") + (current ? ", current" : ""));
  if (current) node.setAttribute("aria-current", "step");
  else node.removeAttribute("aria-current");
}

function lightWay(edge, { times: count }) {
  edge.classList.toggle("visited", count > 0);
  edge.setAttribute("aria-label", edge.dataset.from + " to " + edge.dataset.to + ", " + (count ? short(count) : "not taken"));
  const [box, label] = edge.querySelector(".badge").children;
  label.textContent = short(count);
  const width = 9 + 7 * label.textContent.length;
  box.setAttribute("width", width);
  box.setAttribute("x", -width / 2);
}

// showDetails shows details of the selection, or of the current state if nothing is selected.
function showDetails(now) {
  const { from, to } = chosen ?? { from: now.state };
  document.body.classList.toggle("chosen", Boolean(chosen));
  document.querySelector(".machine").classList.toggle("small", now.state === "Serving" && !chosen); // nothing moves there
  for (const part of document.querySelectorAll("#diagram [role=button]")) {
    part.setAttribute("aria-expanded", Boolean(chosen) && part.dataset.from === from && part.dataset.to === to);
  }
  $("details-title").textContent = to ? from + " → " + to : from;
  $("details-body").replaceChildren(...(to ? rows(now, from, to) : aboutState(now, from)));
}

function aboutState(now, name) {
  const info = table.states.find((state) => state.name === name) ?? {};
  const count = entered(now, name);
  const { spent } = gone(now, (edge) => edge.from === name);
  const whole = () => spent + (now.state === name ? Math.ceil(since(now.since)) : 0);
  const parts = [make("p", "", info.meaning), make("p", "quiet", "time limit: " + info.deadline)];
  parts.push(make("p", "quiet", ...(count ? ["entered " + times(count) + ", ", ticking(() => lasting(whole())), " in total"] : ["not entered in this run"])));
  const targets = new Set(table.transitions.filter((is) => is.from === name).map((is) => is.to));
  for (const to of [...targets].sort((a, b) => (a === name) - (b === name))) {
    parts.push(make("h4", "", to === name ? "stays" : "→ " + to), ...rows(now, name, to));
  }
  return parts;
}

// rows returns a row for each reason of a transition and marks those that have occurred.
function rows(now, from, to) {
  const list = make("ul", "rows");
  for (const is of table.transitions.filter((each) => each.from === from && each.to === to)) list.append(rowItem(now, is));
  return [list];
}

function rowItem(now, is) {
  const { times: count, last } = gone(now, row(is));
  const item = make("li", count ? "taken" : "", make("strong", "", is.on), is.when ? " if " + is.when : "");
  if (count) item.append(make("span", "count", short(count)));
  item.append(make("span", "why", is.why));
  if (is.do) item.append(make("span", "why", "does: " + is.do.join(", ")));
  if (count) item.append(make("span", "why", "last ", moment(last), ", ", ticking(() => ago(last))));
  return item;
}

function choose(part) {
  if (!latest) return;
  opener = part;
  chosen = { from: part.dataset.from, to: part.dataset.to };
  showDetails(latest);
  $("details").scrollTop = 0;
  $("details").focus({ preventScroll: true });
  uncover(part);
}

// uncover scrolls the selection out from under the details, which cover the bottom of a narrow window.
function uncover(part) {
  const details = $("details");
  if (getComputedStyle(details).position !== "fixed") return;
  window.scrollBy(0, Math.max(0, part.getBoundingClientRect().bottom + 12 - details.getBoundingClientRect().top));
}

function unchoose() {
  if (!chosen) return;
  chosen = undefined;
  showDetails(latest);
  opener.focus({ preventScroll: true });
}

for (const part of document.querySelectorAll("#diagram .node, #diagram .edge")) {
  [, part.dataset.from, part.dataset.to] = part.id.split("_");
  if (part.dataset.to === "undefined") delete part.dataset.to;
  for (const [name, value] of [["tabindex", "0"], ["role", "button"], ["aria-controls", "details"]]) part.setAttribute(name, value);
  part.addEventListener("click", () => choose(part));
  part.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(part);
  });
}
$("close").addEventListener("click", unchoose);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") unchoose(); });
