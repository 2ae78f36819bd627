
"use strict";
const $ = (id) => document.getElementById(id);

// make returns an element. Texts are never interpreted as HTML.
function make(name, className, ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content.map((part) => typeof part === "string" ? plain(part) : part));
  return made;
}

// fresh reports whether a part of the page must be redrawn because its data has changed.
const shown = {};
function fresh(part, from) {
  const text = JSON.stringify(from);
  if (shown[part] === text) return false;
  shown[part] = text;
  return true;
}

// plain makes control and direction characters visible, which could otherwise disguise a text.
function plain(text) {
  return String(text ?? "").replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (hidden) => {
    const code = hidden.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : "\\u" + code.toString(16).padStart(4, "0");
  });
}

// The connection to the process. heard is the time of the last event; all clocks stop there without a connection.
const link = { live: false, heard: Date.now(), skew: 0 };

// present returns the current time according to the clock of the process.
const present = () => (link.live ? Date.now() : link.heard) + link.skew;
const since = (time) => (present() - new Date(time)) / 1000;

const format = (options) => new Intl.DateTimeFormat("en-GB", options);
const timeOfDay = format({ hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const dayOfYear = format({ day: "numeric", month: "short" });
const dayAndYear = format({ day: "numeric", month: "short", year: "numeric" });

// clock formats a time in the user's time zone, with the date unless it is today.
function clock(time) {
  const at = new Date(time);
  const today = new Date(present());
  if (at.toDateString() === today.toDateString()) return timeOfDay.format(at);
  return (at.getFullYear() === today.getFullYear() ? dayOfYear : dayAndYear).format(at) + " " + timeOfDay.format(at);
}

function zone() {
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const east = -new Date().getTimezoneOffset();
  const digits = (n) => String(Math.floor(n)).padStart(2, "0");
  const offset = east === 0 ? "" : (east < 0 ? "−" : "+") + digits(Math.abs(east) / 60) + ":" + digits(Math.abs(east) % 60);
  return "times in UTC" + offset + (name && name !== "UTC" ? " (" + name + ")" : "");
}

const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

// lasting formats seconds in at most two units.
function lasting(seconds) {
  if (seconds < 1) return Math.max(0, Math.round(seconds * 1000)) + " ms";
  if (seconds < 10) return Number(seconds.toFixed(1)) + " s";
  const first = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[first];
  const [nextUnit, nextSize] = units[first + 1] ?? [unit, size];
  const rest = Math.floor(seconds % size / nextSize);
  return Math.floor(seconds / size) + " " + unit + (rest > 0 ? " " + rest + " " + nextUnit : "");
}

// ago formats the age of a time in a single unit.
function ago(time) {
  const [unit, size] = units.find((each) => since(time) >= each[1]) ?? [];
  return unit ? Math.floor(since(time) / size) + " " + unit + " ago" : "now";
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  const value = count / 1024 ** power;
  return (power === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)) + " " + units[power];
}

// moment returns an element with a time that shows the exact time on hover.
function moment(time) {
  const made = make("time", "", clock(time));
  made.dateTime = made.title = new Date(time).toISOString();
  return made;
}

// ticking returns a text that is updated over time until the connection is lost.
function ticking(words) {
  const made = make("span", "ticking", words());
  made.words = words;
  return made;
}

function tick() {
  for (const text of document.querySelectorAll(".ticking")) text.textContent = text.words();
}
