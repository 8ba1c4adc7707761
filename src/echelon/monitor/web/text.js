// Formats text and numbers. Everything from a run is inserted as text, never as markup.

export const $ = (id) => document.getElementById(id);

const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\^_])/g;
// Invisible characters: control characters, and those that change the direction of text.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export const plain = (text) => String(text ?? "").replace(ANSI, "")
  .replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Writes only changed text, because each write causes a new layout.
export const say = (place, text) => {
  const shown = plain(text);
  if (place.textContent !== shown) place.textContent = shown;
};
export const put = (place, kind, text, name) => {
  const made = document.createElement(kind);
  if (text != null) made.textContent = plain(text);
  if (name) made.className = name;
  place.append(made);
  return made;
};

export const percent = (share) => share == null ? "" : `${Math.round(100 * share)} %`;
const FORMATS = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", {maximumFractionDigits: digits}));
export const number = (value, digits = 2) => value == null ? "" : FORMATS[digits].format(value);
export const amount = (bytes) => {
  if (bytes == null) return "";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(bytes) < 1000) return `${Math.round(bytes * 10) / 10} ${unit}`;
    bytes /= 1000;
  }
  return `${Math.round(bytes * 10) / 10} TB`;
};
export const figure = (value) => value == null ? "" : typeof value === "string" ? value : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
  ? value.toExponential(2) : String(Number(value.toPrecision(4)));
const pad = (one) => String(one).padStart(2, "0");
export const duration = (seconds) => {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${pad(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
};
const hour = (then) => [then.getHours(), then.getMinutes(), then.getSeconds()].map(pad).join(":");
const day = (then) => [then.getFullYear(), then.getMonth() + 1, then.getDate()].map(pad).join("-");
export const clock = (time) => time ? hour(new Date(1000 * time)) : "";
export const moment = (time) => {
  if (!time) return "";
  const then = new Date(1000 * time);
  return day(then) === day(new Date()) ? hour(then) : `${day(then)} ${hour(then).slice(0, 5)}`;
};
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Shows the content of a card, or its message if there is none.
export const has = (place, any) => {
  const card = place.closest(".card");
  for (const one of card.children) {
    if (one.classList.contains("empty")) one.hidden = any;
    else if (one.contains(place)) one.hidden = !any;
  }
  return any;
};
