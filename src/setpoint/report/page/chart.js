// Curves: drawn as SVG, with zoom, hover and keys. All charts share the axis and the range.
const X_LABELS = { step: "step", tokens: "tokens", time: "training time" };
const LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 26;
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 2 1 2", "12 3"];
const view = { axis: "step", smooth: 0, log: false, clip: false, range: null, cursor: null, hidden: new Set(), filtered: new Set(), colours: null };
const charts = new Set();

/** The colour of a run or a curve: of a palette that colour-blind people can tell apart. */
function colourOf(index) {
  return view.colours?.[index] ?? `var(--c${index % 8})`;
}

function dashOf(index) {
  return DASHES[Math.floor(index / 8) % DASHES.length];
}

/** The points of a curve over an axis, sorted; `y` may be text where it is not finite. */
function pointsOf(run, curve, axis) {
  curve.cache ??= {};
  return (curve.cache[axis] ??= along(run.x[axis], curve.at, curve.y));
}

function along(xs, at, ys) {
  const points = [];
  let sorted = true;
  for (let i = 0; i < at.length; i++) {
    const x = xs[at[i]];
    if (typeof x !== "number") continue;
    if (points.length && x < points[points.length - 1][0]) sorted = false;
    points.push([x, ys[i]]);
  }
  if (!sorted) points.sort((a, b) => a[0] - b[0]);
  return points;
}

/** An exponential moving average that starts without bias (Kingma and Ba, 2015, section 3). */
function smoothed(run, curve, axis, weight) {
  const key = `${axis}/${weight}`;
  curve.cache ??= {};
  if (!curve.cache[key]) {
    const source = curve.mean ? along(run.x[axis], curve.mean_at, curve.mean) : pointsOf(run, curve, axis);
    let sum = 0, scale = 0;
    curve.cache[key] = source.filter((point) => typeof point[1] === "number").map(([x, y]) => {
      sum = weight * sum + (1 - weight) * y;
      scale = weight * scale + (1 - weight);
      return [x, sum / scale];
    });
  }
  return curve.cache[key];
}

/** Whether a curve is smoothed: schedules and evaluations have no noise of single steps. */
function smooths(name) {
  return view.smooth > 0 && !/^(train\.lr|evaluation\.)/.test(name);
}

/** The place of the first point at or after x. */
function search(points, x) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(points, x) {
  const at = search(points, x);
  if (at === 0) return points[0];
  if (at === points.length) return points[at - 1];
  return x - points[at - 1][0] <= points[at][0] - x ? points[at - 1] : points[at];
}

/** The points in a range, with one more on either side, so that lines reach the edges. */
function within(points, range) {
  if (!range) return points;
  return points.slice(Math.max(0, search(points, range[0]) - 1), search(points, range[1]) + 2);
}

function schedule(chart) {
  if (chart.waiting) return;
  chart.waiting = true;
  requestAnimationFrame(() => {
    chart.waiting = false;
    if (chart.node.offsetParent !== null) chart.draw();
  });
}

function redraw() {
  charts.forEach(schedule);
}

function zoom(range) {
  if (range && !(range[1] > range[0])) return;
  view.range = range;
  view.cursor = null;
  document.dispatchEvent(new Event("zoomed"));
  redraw();
}

class Chart {
  /** lines: [{run, curve, name, colour, dash, points}]; `marks`: [[x of each axis, text]]. */
  constructor(title, runs, columns, marks = []) {
    this.title = title;
    this.runs = runs;
    this.columns = columns;
    this.marks = marks;
    this.svg = svg("svg", { tabindex: 0, role: "application", "aria-roledescription": "chart" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.live = el("div", { class: "live", "aria-live": "polite" });
    this.legend = el("span", { class: "legend" });
    this.node = el("article", { class: "card chart", "data-chart": title },
      el("header", {}, el("h3", {}, title), this.legend), this.svg, this.tip, this.live);
    this.listen();
    charts.add(this);
    new ResizeObserver(() => schedule(this)).observe(this.node);
  }

  lines() {
    const many = this.runs.length > 1;
    const found = [];
    this.runs.forEach((run, place) => {
      if (view.hidden.has(place) || view.filtered.has(place)) return;
      this.columns.forEach((name, index) => {
        const curve = run.curves[name];
        if (!curve) return;
        const colour = many ? colourOf(place) : colourOf(index);
        const dash = many ? (this.columns.length > 1 ? DASHES[index % DASHES.length] : (view.colours ? "" : dashOf(place))) : dashOf(index);
        const label = many ? (this.columns.length > 1 ? `${run.label}: ${plainName(name)}` : run.label) : plainName(name);
        found.push({ run, curve, name, label, colour, dash, points: pointsOf(run, curve, view.axis) });
      });
    });
    return found.filter((line) => line.points.length);
  }

  draw() {
    const width = Math.max(200, this.svg.clientWidth || 400), height = this.svg.clientHeight || 230;
    const lines = this.lines();
    this.drawn = lines;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawLegend(lines);
    const extent = lines.reduce(([low, high], line) =>
      [Math.min(low, line.points[0][0]), Math.max(high, line.points[line.points.length - 1][0])], [Infinity, -Infinity]);
    if (!lines.length) {
      this.svg.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no values over this axis"));
      this.scale = null;
      return;
    }
    let [x0, x1] = view.range ?? extent;
    if (x1 <= x0) [x0, x1] = [x0 - .5, x1 + .5];
    const shown = lines.map((line) => ({
      ...line,
      raw: within(line.points, view.range),
      smooth: smooths(line.name) ? within(smoothed(line.run, line.curve, view.axis, view.smooth), view.range) : null,
    }));
    const values = [];
    for (const line of shown) for (const [x, y] of line.raw) if (typeof y === "number" && x >= x0 && x <= x1) values.push(y);
    if (!values.length) for (const line of shown) for (const [, y] of line.raw) if (typeof y === "number") values.push(y);
    const log = view.log && values.some((y) => y > 0);
    let [y0, y1] = bounds(log ? values.filter((y) => y > 0) : values, view.clip);
    if (log) {
      [y0, y1] = y1 > y0 ? [y0 / (y1 / y0) ** .04, y1 * (y1 / y0) ** .04] : [y0 / 1.5, y1 * 1.5];
    } else {
      const room = y1 > y0 ? (y1 - y0) * .05 : Math.abs(y0) * .05 || .5;
      [y0, y1] = [y0 - room, y1 + room];
    }
    const right = width - RIGHT, bottom = height - BOTTOM;
    const toX = (x) => LEFT + (x - x0) / (x1 - x0) * (right - LEFT);
    const unit = log ? Math.log10 : (y) => y;
    const toY = (y) => bottom - (unit(y) - unit(y0)) / (unit(y1) - unit(y0)) * (bottom - TOP);
    this.scale = { toX, toY, x0, x1, left: LEFT, right, top: TOP, bottom, fromX: (px) => x0 + (px - LEFT) / (right - LEFT) * (x1 - x0) };
    this.drawAxes(log, y0, y1);
    const clip = `clip${Chart.next = (Chart.next ?? 0) + 1}`;
    this.svg.append(svg("clipPath", { id: clip }, svg("rect", { x: LEFT - 4, y: 0, width: right - LEFT + 8, height: bottom + 1 })));
    const body = svg("g", { "clip-path": `url(#${clip})` });
    for (const mark of this.marks) {
      const x = toX(mark.x[view.axis]);
      if (x >= LEFT && x <= right) body.append(svg("line", { class: "happened", x1: x, x2: x, y1: TOP, y2: bottom }, svg("title", {}, mark.text)));
    }
    const visible = (y) => typeof y === "number" && !(log && y <= 0);
    for (const line of shown) {
      const style = { stroke: line.colour, "stroke-dasharray": line.dash || null };
      const few = !line.smooth && lines.length <= 8 && line.raw.length <= 60 && line.raw.length < (right - LEFT) / 12;
      body.append(svg("path", { class: line.smooth ? "curve raw" : "curve", d: pathOf(line.raw, toX, toY, visible), ...style }));
      if (line.smooth) body.append(svg("path", { class: "curve", d: pathOf(line.smooth, toX, toY, visible), ...style }));
      for (const [x, y] of line.raw) {
        if (typeof y !== "number") body.append(svg("path", { class: "nan", d: `M${toX(x) - 4} ${bottom}h8l-4 -8z` }, svg("title", {}, `${line.label}: ${y}`)));
        else if (few && visible(y)) body.append(svg("circle", { cx: toX(x), cy: toY(y), r: line.raw.length === 1 ? 3.5 : 2.2, fill: line.colour }));
      }
    }
    this.svg.append(body);
    this.over = svg("g");
    this.svg.append(this.over);
    const end = lines.slice(0, 4).map((line) => `${line.label} ${digits(line.points[line.points.length - 1][1])}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title} over ${X_LABELS[view.axis]}, last: ${end}. Arrow keys read values, + and - zoom, 0 resets.`);
    if (view.cursor !== null) this.point(view.cursor, false);
    else this.tip.hidden = true;
  }

  drawLegend(lines) {
    const several = this.runs.length === 1 ? lines : lines.filter((line, at) => lines.findIndex((l) => l.name === line.name) === at);
    if (this.columns.length < 2) return this.legend.replaceChildren();
    this.legend.replaceChildren(...several.flatMap((line) => {
      const sign = svg("svg", { width: 22, height: 8, viewBox: "0 0 22 8", "aria-hidden": true },
        svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 2, stroke: this.runs.length > 1 ? "currentColor" : line.colour, "stroke-dasharray": line.dash || null }));
      sign.classList.add("key");
      return [el("span", { class: "item" }, sign, ` ${plainName(line.name)}`)];
    }));
  }

  drawAxes(log, y0, y1) {
    const { toX, toY, x0, x1, left, right, top, bottom } = this.scale;
    for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, (bottom - top) / 36)) {
      const at = toY(y);
      this.svg.append(svg("line", { class: "grid-line", x1: left, x2: right, y1: at, y2: at }),
        svg("text", { class: "y-tick", x: left - 6, y: at + 4, "text-anchor": "end" }, short(y)));
    }
    const text = view.axis === "time" ? duration : short;
    const steps = view.axis === "time" ? timeTicks(x0, x1, (right - left) / 90) : ticks(x0, x1, (right - left) / 80);
    for (const x of steps) {
      const at = toX(x);
      const anchor = at > right - 16 ? "end" : at < left + 10 ? "start" : "middle";
      this.svg.append(svg("line", { class: "grid-line", x1: at, x2: at, y1: top, y2: bottom }),
        svg("text", { class: "x-tick", x: at, y: bottom + 16, "text-anchor": anchor }, text(x)));
    }
    this.svg.append(svg("line", { class: "axis-line", x1: left, x2: right, y1: bottom, y2: bottom }));
  }

  /** Show the values nearest to x: a line, dots and a table. */
  point(x, speaks) {
    if (!this.scale || !this.over) return;
    const { toX, toY, top, bottom, x0, x1 } = this.scale;
    this.over.replaceChildren();
    if (x < x0 || x > x1) return;
    const rows = [];
    let at = null;
    for (const line of this.drawn) {
      const point = nearest(line.points, x);
      if (point[0] < x0 || point[0] > x1) continue;
      if (at === null || Math.abs(point[0] - x) < Math.abs(at - x)) at = point[0];
      rows.push([line, point]);
    }
    if (at === null) return;
    this.over.append(svg("line", { class: "cursor", x1: toX(at), x2: toX(at), y1: top, y2: bottom }));
    const close = rows.filter(([, point]) => Math.abs(toX(point[0]) - toX(at)) < 24);
    for (const [line, [px, y]] of close) {
      if (typeof y === "number" && !(view.log && y <= 0)) this.over.append(svg("circle", { class: "dot", cx: toX(px), cy: toY(y), r: 4, fill: line.colour }));
    }
    if (!speaks) return;
    const axis = view.axis === "time" ? duration(at) : digits(at);
    const most = close.length > 12 ? close.slice().sort((a, b) => Number(a[1][1]) - Number(b[1][1])).slice(0, 12) : close;
    const table = most.map(([line, [px, y]]) => {
      const smooth = smooths(line.name) && typeof y === "number" ? nearest(smoothed(line.run, line.curve, view.axis, view.smooth), px) : null;
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = line.colour;
      const elsewhere = px === at ? "" : ` (at ${view.axis === "time" ? duration(px) : digits(px)})`;
      return el("tr", {}, el("td", {}, swatch, line.label + elsewhere), el("td", {}, digits(y) + (smooth ? ` ~${digits(smooth[1], 4)}` : "")));
    });
    if (most.length < close.length) table.push(el("tr", {}, el("td", {}, `and ${close.length - most.length} more`)));
    this.tip.replaceChildren(el("div", { class: "soft" }, `${X_LABELS[view.axis]} ${axis}`), el("table", {}, table));
    this.tip.hidden = false;
    const box = this.svg.getBoundingClientRect(), outer = this.node.getBoundingClientRect();
    const px = box.left - outer.left + toX(at) * box.width / this.svg.viewBox.baseVal.width;
    const left = px + 14 + this.tip.offsetWidth > outer.width ? px - 14 - this.tip.offsetWidth : px + 14;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${box.top - outer.top + 12}px`;
    this.said = `${X_LABELS[view.axis]} ${axis}: ${most.map(([line, [, y]]) => `${line.label} ${digits(y)}`).join(", ")}`;
  }

  aim(x) {
    view.cursor = x;
    charts.forEach((chart) => chart.scale && chart.node.offsetParent !== null && chart.point(x, chart === this));
  }

  leave() {
    view.cursor = null;
    charts.forEach((chart) => {
      chart.tip.hidden = true;
      chart.over?.replaceChildren();
    });
  }

  listen() {
    const place = (event) => {
      const box = this.svg.getBoundingClientRect();
      return (event.clientX - box.left) * this.svg.viewBox.baseVal.width / box.width;
    };
    let from = null, brush = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (!this.scale || event.button) return;
      if (event.pointerType !== "touch") {
        from = place(event);
        this.svg.setPointerCapture(event.pointerId);
      }
      this.aim(this.scale.fromX(place(event)));
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.scale) return;
      const { left, right, top, bottom, fromX } = this.scale;
      const x = Math.min(right, Math.max(left, place(event)));
      if (from !== null && Math.abs(x - from) > 4) {
        if (!brush) this.svg.append(brush = svg("rect", { class: "brush", y: top, height: bottom - top }));
        brush.setAttribute("x", Math.min(from, x));
        brush.setAttribute("width", Math.abs(x - from));
      }
      this.aim(fromX(x));
    });
    this.svg.addEventListener("pointerup", (event) => {
      const start = from;
      from = null;
      if (!brush) return;
      brush.remove();
      brush = null;
      const { left, right, fromX } = this.scale;
      const ends = [start, place(event)].map((x) => fromX(Math.min(right, Math.max(left, x)))).sort((a, b) => a - b);
      zoom(ends);
    });
    this.svg.addEventListener("pointerleave", () => from === null && this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("dblclick", () => zoom(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.scale || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x0, x1 } = this.scale;
    const points = this.drawn[0].points;
    const at = view.cursor ?? x0;
    const move = (step) => points[Math.max(0, Math.min(points.length - 1, points.indexOf(nearest(points, at)) + step))][0];
    const span = x1 - x0;
    const actions = {
      ArrowRight: () => this.aim(Math.min(x1, view.cursor === null ? nearest(points, x0)[0] : move(event.shiftKey ? 10 : 1))),
      ArrowLeft: () => this.aim(Math.max(x0, move(event.shiftKey ? -10 : -1))),
      Home: () => this.aim(Math.max(x0, points[0][0])),
      End: () => this.aim(Math.min(x1, points[points.length - 1][0])),
      "+": () => zoom([Math.max(x0, at - span / 4), Math.min(x1, at + span / 4)]),
      "-": () => zoom(view.range ? [x0 - span / 2, x1 + span / 2] : null),
      0: () => zoom(null),
      Escape: () => zoom(null),
    };
    const action = actions[event.key === "=" ? "+" : event.key];
    if (!action) return;
    event.preventDefault();
    this.said = "";
    action();
    if (this.said) this.live.textContent = this.said;
  }
}

/** A column without the kind that most have. */
function plainName(name) {
  return name.replace(/^(train|evaluation)\./, "").replaceAll("_", " ");
}

function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((each) => each >= rough);
  if (rough < 1 || !step) return ticks(low, high, count);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high && found.length < 50; at++) found.push(at * step);
  return found;
}

/** Smallest and largest value; of the middle 96 % where outliers are clipped. */
function bounds(values, clip) {
  if (clip && values.length > 20) {
    const sorted = Float64Array.from(values).sort();
    return [sorted[Math.floor(.02 * (sorted.length - 1))], sorted[Math.ceil(.98 * (sorted.length - 1))]];
  }
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A path: of many points in one pixel column the first, least, largest and last. */
function pathOf(points, toX, toY, visible) {
  let path = "", pen = "M", column = null, group = null;
  const put = (point) => {
    path += `${pen}${toX(point[0]).toFixed(1)} ${toY(point[1]).toFixed(1)}`;
    pen = "L";
  };
  const flush = () => {
    if (!group) return;
    const kept = [...new Set([group.first, group.low, group.high, group.last])].sort((a, b) => a[2] - b[2]);
    kept.forEach((each) => put(each));
    group = null;
  };
  points.forEach(([x, y], order) => {
    if (!visible(y)) {
      flush();
      pen = "M";
      return;
    }
    const here = Math.floor(toX(x)), point = [x, y, order];
    if (here !== column) {
      flush();
      column = here;
    }
    if (!group) group = { first: point, low: point, high: point, last: point };
    if (y < group.low[1]) group.low = point;
    if (y > group.high[1]) group.high = point;
    group.last = point;
  });
  flush();
  return path;
}
