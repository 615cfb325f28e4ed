// Elements and numbers. What comes from a run becomes text and nothing else.
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text nodes. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    } else if (name.startsWith("aria-") ? value !== null : value !== null && value !== false) {
      node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number with up to so many digits, as people read it. */
function digits(value, most = 6) {
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size >= 1e7 || size < 1e-4) return value.toExponential(most - 1).replace(/\.?0+e/, "e");
  return Number(value.toPrecision(most)).toLocaleString("en-US", { maximumFractionDigits: 12 });
}

/** A number beside an axis: short. */
function short(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit && size < 1000 * unit) return `${Number((value / unit).toPrecision(6))}${name}`;
  }
  if (size >= 1e15 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(6)));
}

/** Seconds as people say them. */
function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
  const pad = (n) => String(n).padStart(2, "0");
  if (h >= 48) return `${Math.floor(h / 24)} d ${pad(h % 24)}:${pad(m)}`;
  return h ? `${h}:${pad(m)}:${pad(s)}` : `${m}:${pad(s)}`;
}

function moment(seconds) {
  return seconds === null ? "" : new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);
}

/** Text with the places marked in which a search is found. */
function marked(text, wanted) {
  const at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  if (at < 0) return [text];
  return [text.slice(0, at), el("mark", {}, text.slice(at, at + wanted.length)), text.slice(at + wanted.length)];
}

function card(...content) {
  return el("article", { class: "card" }, content);
}

function button(text, click, attributes = {}) {
  return el("button", { type: "button", on: { click }, ...attributes }, text);
}

/** Buttons of which one is pressed. */
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => button(text, () => {
    buttons.forEach((each) => each.setAttribute("aria-pressed", each === buttons[options.findIndex((o) => o[0] === value)]));
    choose(value);
  }, { "aria-pressed": value === chosen, "data-value": value }));
  return el("span", { class: "group", role: "group", "aria-label": label }, buttons);
}

/** Round numbers between two bounds. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-12) + 1e-300 && found.length < 50; at++) found.push(at * step);
  return found;
}

/** Powers of ten between two positive bounds, with 2 and 5 where there are few. */
function logTicks(low, high) {
  const found = [];
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const factors = last - first <= 3 ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil((last - first) / 6));
  for (let power = first; power <= last; power += skip) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push(Number(value.toPrecision(3)));
    }
  }
  return found.length > 1 ? found : ticks(low, high, 4).filter((value) => value > 0);
}
