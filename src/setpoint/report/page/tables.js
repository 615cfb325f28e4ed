// What is read rather than drawn: configuration, differences, environment, events, samples.
const SHOWN = 300;

/** A run's name with its colour, where there are several. */
function named(index) {
  const run = report.runs[index];
  if (report.runs.length < 2) return [run.label];
  const swatch = el("span", { class: "swatch" });
  swatch.style.background = colourOf(index);
  return [swatch, run.label];
}

/** Content of one run at a time, chosen where there are several. */
function ofOneRun(make) {
  const body = el("div");
  const show = (index) => body.replaceChildren(...[make(report.runs[index], index)].flat());
  show(0);
  if (report.runs.length < 2) return [body];
  const select = el("select", { "aria-label": "run", on: { change: () => show(Number(select.value)) } },
    report.runs.map((run, index) => el("option", { value: index }, run.label)));
  return [el("div", { class: "tools" }, el("label", {}, "run", select)), body];
}

/** Rows under a search: no more than fit are drawn until all are asked for. */
function searched(label, rows, make, head, extra = []) {
  const body = el("tbody"), count = el("span", { class: "soft small", "aria-live": "polite" });
  let limit = SHOWN;
  const input = el("input", { type: "search", placeholder: label, "aria-label": label, on: { input: () => show() } });
  const filters = extra.map(({ text, test }) => {
    const box = el("input", { type: "checkbox", on: { change: () => show() } });
    return { box, test, node: el("label", {}, box, text) };
  });
  const more = button("show all", () => {
    limit = Infinity;
    show();
  });
  const show = () => {
    const wanted = input.value.trim().toLowerCase();
    const found = rows.filter((row) => (!wanted || row.text.includes(wanted)) && filters.every((filter) => !filter.box.checked || filter.test(row)));
    body.replaceChildren(...found.slice(0, limit).map((row) => make(row, wanted)));
    count.textContent = `${found.length} of ${rows.length}`;
    more.hidden = found.length <= limit;
  };
  show();
  const titles = head.map((title) => el("th", { scope: "col" }, title));
  return el("div", {},
    el("div", { class: "tools" }, input, filters.map((filter) => filter.node), count),
    el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "rows" }, el("table", { class: "data fold" }, el("thead", {}, el("tr", {}, titles)), body)), more);
}

function configuration(run) {
  if (!run.settings.length) return el("p", { class: "empty" }, "The record of the configuration cannot be read.");
  const rows = run.settings.map((place) => {
    const [path, value, role, layers] = report.settings[place];
    const [layer, origin] = layers.length ? layers[layers.length - 1] : ["", ""];
    return { path, value, role, layers, origin, set: layer !== "" && layer !== "default" && !origin.startsWith("derived"), text: `${path}\n${value}\n${origin}\n${role}`.toLowerCase() };
  });
  const line = (row, wanted) => {
    const origin = el("td", { class: "origin" }, marked(row.origin, wanted));
    if (row.layers.length > 1) {
      origin.replaceChildren(el("details", {}, el("summary", {}, marked(row.origin, wanted)),
        el("ol", { class: "layers" }, row.layers.map(([layer, from, value]) => el("li", {}, `${from || layer}: `, el("span", { class: "mono" }, value))))));
    }
    return el("tr", { class: row.set ? "touched" : "" }, el("td", { class: "mono path" }, marked(row.path, wanted)),
      el("td", { class: "mono value" }, marked(row.value, wanted)), origin, el("td", { class: "soft small whole" }, row.role));
  };
  return searched("search fields, values, origins", rows, line, ["field", "value", "origin", "role"],
    [{ text: "only what was set", test: (row) => row.set }]);
}

/** The values that differ: a column for each run, or a row for each of many. */
function differenceTable(rows) {
  if (report.runs.length > 6) {
    return el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "rows" }, el("table", { class: "data" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "run"), rows.map((row) => el("th", { scope: "col", class: "mono" }, row.path)))),
      el("tbody", {}, report.runs.map((run, index) => el("tr", {}, el("th", { scope: "row" }, named(index)),
        rows.map((row) => el("td", { class: "mono", title: row.cells[index]?.[1] ?? null }, row.cells[index]?.[0] ?? el("span", { class: "soft" }, "absent"))))))));
  }
  const heads = report.runs.map((run, index) => el("th", { scope: "col" }, named(index)));
  return el("div", { class: "scroll" }, el("table", { class: "data" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), heads)),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { scope: "row", class: "mono" }, row.path),
      row.cells.map((cell) => el("td", {}, cell ? [el("div", { class: "mono" }, cell[0]), el("div", { class: "origin" }, cell[1])] : el("span", { class: "soft" }, "absent"))))))));
}

/** Nested data as a list that opens. */
function tree(value, level = 0) {
  if (value === null || typeof value !== "object") return el("span", { class: "mono" }, value === null ? "null" : typeof value === "number" ? String(value) : String(value));
  const entries = Array.isArray(value) ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  if (!entries.length) return el("span", { class: "soft" }, Array.isArray(value) ? "[]" : "{}");
  if (Array.isArray(value) && value.every((each) => each === null || typeof each !== "object")) {
    return el("span", { class: "mono" }, value.map((each) => String(each)).join("  "));
  }
  return el("ul", { class: level ? "tree" : "tree root" }, entries.map(([key, each]) => {
    const inner = each !== null && typeof each === "object" && (Array.isArray(each) ? each.some((one) => one !== null && typeof one === "object") : Object.keys(each).length > 0);
    if (!inner) return el("li", {}, el("span", { class: "key" }, `${key}: `), tree(each, level + 1));
    const details = el("details", {}, el("summary", {}, el("span", { class: "key" }, key)));
    details.addEventListener("toggle", () => details.children.length < 2 && details.append(tree(each, level + 1)));
    return el("li", {}, details);
  }));
}

function environment(run) {
  const found = report.environments[run.environment];
  if (!Object.keys(found).length) return el("p", { class: "empty" }, "The environment is not recorded.");
  const own = found.code?.user?.revision ? found.code.user : found.code?.setpoint;
  const revision = own?.revision ? `${String(own.revision).slice(0, 12)}${own.dirty ? " with changes" : ""}` : null;
  const rows = [
    ["command", Array.isArray(found.command) ? found.command.map(quoted).join(" ") : null], ["directory", found.directory],
    ["code", revision], ["Python", found.python?.version], ["torch", found.torch?.version],
    ["host", found.system?.host], ["platform", found.system?.platform],
    ["processor", found.processor?.model && `${found.processor.model}, ${found.processor.usable_cores} cores`],
    ["ranks", found.world?.size],
  ].filter(([, value]) => value !== null && value !== undefined);
  return [
    el("table", { class: "data" }, el("tbody", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "mono" }, String(value)))))),
    el("p", {}), tree(found)];
}

function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

const TONES = { fault: "var(--bad)", damaged: "var(--bad)", skip: "var(--warn)", rollback: "var(--warn)", restart: "var(--warn)", spike: "var(--warn)", end: "var(--good)" };
const LANES = 40;
const BEGIN = ["start", "resume", "restart"];

/** A lane for each run: sessions as bars, events as marks. */
function timeline() {
  const node = el("div", { class: "scroll" });
  const all = report.runs.flatMap((run) => run.events.map((event) => event.time)).filter((time) => time !== null);
  if (!all.length) return node;
  const draw = () => {
    const low = all.reduce((a, b) => Math.min(a, b)), high = Math.max(all.reduce((a, b) => Math.max(a, b)), low + 1);
    const width = Math.max(280, node.clientWidth || 800), lane = 34, left = 8, right = width - 8;
    const runs = report.runs.slice(0, LANES);
    const height = runs.length * lane + 26;
    const toX = (time) => left + (time - low) / (high - low) * (right - left);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "sessions and events over time" });
    for (const offset of timeTicks(0, high - low, width / 110)) {
      const x = toX(low + offset);
      if (offset && x < left + 150) continue;
      drawing.append(svg("line", { class: "grid-line", x1: x, x2: x, y1: 0, y2: height - 20 }),
        svg("text", { x, y: height - 6, "text-anchor": x > right - 30 ? "end" : x < left + 20 ? "start" : "middle" }, offset ? `+${duration(offset)}` : moment(low)));
    }
    runs.forEach((run, index) => {
      const y = index * lane + 22;
      if (report.runs.length > 1) drawing.append(svg("text", { x: left, y: y - 10 }, run.label));
      let begun = null, last = null;
      const bar = (from, to) => drawing.append(svg("rect", { x: toX(from), width: Math.max(2, toX(to) - toX(from)), y: y - 4, height: 8, rx: 3, fill: colourOf(index), opacity: .35 }));
      for (const event of run.events) {
        if (event.time === null) continue;
        if (BEGIN.includes(event.event)) {
          if (begun !== null) bar(begun, last);
          begun = event.time;
        }
        last = event.time;
      }
      if (begun !== null) bar(begun, last);
      for (const event of run.events) {
        if (event.time === null) continue;
        const shape = event.event === "fault" ? svg("path", { d: `M${toX(event.time)} ${y - 7}l6 11h-12z` }) : svg("circle", { cx: toX(event.time), cy: y, r: BEGIN.includes(event.event) ? 5 : 3.5 });
        shape.setAttribute("fill", TONES[event.event] ?? colourOf(index));
        shape.append(svg("title", {}, `${event.event}${event.step === null ? "" : ` at step ${event.step}`}, ${moment(event.time)} UTC`));
        drawing.append(shape);
      }
    });
    node.replaceChildren(drawing);
  };
  let width = 0;
  new ResizeObserver(() => {
    if (node.clientWidth !== width) {
      width = node.clientWidth;
      draw();
    }
  }).observe(node);
  return node;
}

function events(run) {
  const rows = run.events.map((event) => ({ ...event, text: `${event.event} ${event.step} ${moment(event.time)} ${JSON.stringify(event.details)}`.toLowerCase() }));
  const line = (event, wanted) => {
    const tone = el("strong", {}, marked(event.event, wanted));
    tone.style.color = TONES[event.event] ?? "";
    const plain = Object.entries(event.details).filter(([, value]) => value === null || typeof value !== "object");
    const said = plain.map(([key, value]) => `${key} ${typeof value === "number" ? digits(value) : value}`).join(", ");
    const details = el("td", {}, marked(said, wanted));
    if (plain.length < Object.keys(event.details).length) {
      const more = el("details", {}, el("summary", { class: "soft small" }, "details"));
      more.addEventListener("toggle", () => more.children.length < 2 && more.append(tree(event.details)));
      details.append(more);
    }
    return el("tr", {}, el("td", { class: "small soft whole" }, moment(event.time)), el("td", { class: "whole" }, tone),
      el("td", { class: "whole" }, event.step === null ? "" : `step ${digits(event.step)}`), details);
  };
  return searched("search events", rows, line, ["time (UTC)", "event", "step", ""]);
}

/** A bar of parts with its legend as a table; parts: [name, amount, text...]. */
function stacked(parts, heads) {
  const total = parts.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  const percent = (amount) => `${(100 * amount / total).toFixed(1)} %`;
  const bar = el("div", { class: "share", role: "img", "aria-label": parts.map(([name, amount]) => `${name} ${percent(amount)}`).join(", ") },
    parts.map(([name, amount], place) => {
      const part = el("div", { title: `${name} ${percent(amount)}` });
      part.style.flex = `${amount} 0 0`;
      part.style.background = partColour(place);
      return part;
    }));
  const rows = parts.map(([name, amount, ...texts], place) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = partColour(place);
    return el("tr", {}, el("td", {}, swatch, name), [percent(amount), ...texts].map((text) => el("td", { class: "number" }, text)));
  });
  return [bar, el("div", { class: "scroll" }, el("table", { class: "data parts" },
    el("thead", {}, el("tr", {}, heads.map((head, at) => el("th", { scope: "col", class: at ? "number" : "" }, head)))), el("tbody", {}, rows)))];
}

/** Past the palette the same colours again, paler. */
function partColour(place) {
  return place < 8 ? `var(--c${place})` : `color-mix(in srgb, var(--c${place % 8}) 50%, var(--card))`;
}

/** Cards of what each run has: all beside one another, or one at a time where runs are many. */
function ofEachRun(has, make) {
  if (!report.runs.some(has)) return [];
  if (report.runs.length > 6) return ofOneRun((run) => has(run) ? card(make(run)) : el("p", { class: "empty" }, "This run has none."));
  return el("div", { class: report.runs.length > 1 ? "grid" : "" }, report.runs.map((run, index) =>
    has(run) ? card(report.runs.length > 1 ? el("h3", {}, named(index)) : null, make(run)) : null));
}

function time() {
  const goodput = ofEachRun((run) => run.goodput, (run) => {
    const { wall, share, sessions, lost_steps, parts } = run.goodput;
    const more = [sessions > 1 ? `${sessions} sessions` : null, lost_steps ? `${digits(lost_steps)} steps trained again` : null].filter((text) => text);
    return [el("p", {}, el("strong", {}, `goodput ${(100 * share).toFixed(1)} %`), ` of ${duration(wall)}${more.map((text) => `, ${text}`).join("")}`),
      stacked(parts.map(([name, seconds]) => [name, seconds, duration(seconds)]), ["of the whole run", "share", "time"])];
  });
  const parts = ofEachRun((run) => run.parts.length, (run) =>
    stacked(run.parts.map(([name, seconds]) => [name, seconds, duration(seconds)]), ["of a step", "share", "time"]));
  return [goodput, parts];
}

function shares() {
  return ofEachRun((run) => run.shares.length, (run) => stacked(run.shares.map((each) =>
    [each.source, each.sequences, digits(each.sequences), each.targets === null ? "" : digits(each.targets), each.cross_entropy === null ? "" : digits(each.cross_entropy, 5)]),
  ["source", "share", "sequences", "target tokens", "cross-entropy, last"]));
}

function samples(run) {
  if (!run.samples.length) return el("p", { class: "empty" }, "This run has no samples.");
  return run.samples.slice().reverse().map((row) => {
    const rest = Object.entries(row).filter(([key]) => !["kind", "time", "step", "prompt", "text"].includes(key));
    return el("article", { class: "card" }, el("p", { class: "soft small" }, `step ${digits(row.step ?? "?")}${rest.map(([key, value]) => `, ${key} ${typeof value === "number" ? digits(value) : value}`).join("")}`),
      el("pre", {}, el("span", { class: "soft" }, String(row.prompt ?? "")), String(row.text ?? "")));
  });
}
