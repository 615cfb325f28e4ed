// Runs of a sweep: parallel coordinates, importance of fields, the best points.

/** Cividis (Nunez, Anderton and Renslow, 2018) in a few steps. */
const SEQUENCE = [[255, 234, 70], [214, 196, 92], [165, 156, 116], [124, 123, 120], [87, 92, 109], [42, 63, 109], [0, 34, 78]];

/** Of 0 the colour that stands out most, dark on light and light on dark, of 1 the palest. */
function sequential(share) {
  const mixed = (place) => {
    const at = place * (SEQUENCE.length - 1), low = Math.min(SEQUENCE.length - 2, Math.floor(at));
    return `rgb(${SEQUENCE[low].map((value, i) => Math.round(value + (at - low) * (SEQUENCE[low + 1][i] - value))).join(", ")})`;
  };
  return `light-dark(${mixed(1 - .85 * share)}, ${mixed(.85 * share)})`;
}

/** Places of the runs by the objective: the best first, those without one last. */
function ranking(sweep) {
  const sign = sweep.minimize ? 1 : -1;
  const key = (index) => sweep.values[index] === null ? Infinity : sign * sweep.values[index];
  return sweep.values.map((_, index) => index).sort((a, b) => key(a) - key(b) || a - b);
}

/** With many runs the objective gives the colours. */
function colourBySweep(sweep) {
  const order = ranking(sweep).filter((index) => sweep.values[index] !== null);
  const colours = sweep.values.map(() => "var(--soft)");
  order.forEach((index, place) => colours[index] = sequential(order.length > 1 ? place / (order.length - 1) : 0));
  return colours;
}

class Parallel {
  constructor(sweep, choose) {
    this.sweep = sweep;
    this.choose = choose;
    this.limits = new Map();
    this.axes = [...sweep.knobs.slice(0, 8).map((knob) => axisOf(knob.path, knob.values)), axisOf(sweep.objective, sweep.values, !sweep.minimize)];
    this.svg = svg("svg", { role: "img", "aria-label": `parallel coordinates of ${sweep.values.length} runs; the table below holds the same numbers` });
    this.node = el("div", { class: "scroll" }, this.svg);
    let width = 0;
    new ResizeObserver(() => {
      if (this.node.clientWidth !== width) {
        width = this.node.clientWidth;
        this.draw();
      }
    }).observe(this.node);
  }

  draw() {
    const wide = Math.max(this.node.clientWidth || 800, this.axes.length * 110), height = 320, top = 40, bottom = height - 18;
    this.svg.replaceChildren();
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${wide} ${height}`, width: wide, height })) this.svg.setAttribute(name, value);
    const left = 60, right = wide - 70;
    const xs = this.axes.map((_, index) => left + index * (right - left) / Math.max(1, this.axes.length - 1));
    const y = (share) => bottom - share * (bottom - top);
    this.paths = this.sweep.values.map((_, run) => {
      let pen = "M", d = "";
      this.axes.forEach((axis, index) => {
        const share = axis.place(run);
        if (share === null) return void (pen = "M");
        d += `${pen}${xs[index].toFixed(1)} ${y(share).toFixed(1)}`;
        pen = "L";
      });
      const path = svg("path", { class: "curve", d, stroke: view.colours?.[run] ?? colourOf(run), "data-run": run }, svg("title", {}, this.words(run)));
      path.addEventListener("pointerenter", () => this.choose(run));
      path.addEventListener("pointerleave", () => this.choose(null));
      return path;
    });
    ranking(this.sweep).reverse().forEach((run) => this.svg.append(this.paths[run]));
    this.axes.forEach((axis, index) => {
      const lines = shortened(axis.path, index === this.axes.length - 1 ? 22 : 18);
      const title = svg("text", { x: xs[index], y: lines.length > 1 ? 12 : 24, "text-anchor": "middle" },
        lines.map((line, at) => svg("tspan", { x: xs[index], dy: at ? 13 : 0 }, line)), svg("title", {}, axis.path));
      const group = svg("g", {}, svg("line", { class: "axis-line", x1: xs[index], x2: xs[index], y1: top, y2: bottom }), title);
      for (const [share, text] of axis.ticks) group.append(svg("line", { class: "axis-line", x1: xs[index] - 4, x2: xs[index], y1: y(share), y2: y(share) }), svg("text", { x: xs[index] - 7, y: y(share) + 4, "text-anchor": "end" }, text));
      const handle = svg("rect", { x: xs[index] - 14, y: top - 6, width: 28, height: bottom - top + 12, fill: "transparent" });
      handle.style.cursor = "ns-resize";
      this.brush(handle, group, index, xs[index], (px) => (bottom - px) / (bottom - top), y);
      group.append(handle);
      this.svg.append(group);
    });
    this.filter();
  }

  /** Drag along an axis to keep the runs in a range; a click takes it back. */
  brush(handle, group, index, x, toShare, y) {
    const band = svg("rect", { class: "brush", x: x - 7, width: 14 });
    const show = () => {
      const limits = this.limits.get(index);
      if (!limits) return band.remove();
      band.setAttribute("y", y(limits[1]));
      band.setAttribute("height", Math.max(1, y(limits[0]) - y(limits[1])));
      group.insertBefore(band, handle);
    };
    let from = null;
    const share = (event) => {
      const box = this.svg.getBoundingClientRect();
      return Math.max(-.03, Math.min(1.03, toShare((event.clientY - box.top) * this.svg.viewBox.baseVal.height / box.height)));
    };
    handle.addEventListener("pointerdown", (event) => {
      from = share(event);
      handle.setPointerCapture(event.pointerId);
      this.limits.delete(index);
      show();
      this.filter();
    });
    handle.addEventListener("pointermove", (event) => {
      if (from === null || Math.abs(share(event) - from) < .02) return;
      this.limits.set(index, [from, share(event)].sort((a, b) => a - b));
      show();
      this.filter();
    });
    handle.addEventListener("pointerup", () => from = null);
    show();
  }

  /** Fade the runs outside of the ranges, and leave them out of the curves. */
  filter() {
    view.filtered.clear();
    this.paths.forEach((path, run) => {
      const kept = [...this.limits].every(([index, [low, high]]) => {
        const share = this.axes[index].place(run);
        return share !== null && share >= low && share <= high;
      });
      if (!kept) view.filtered.add(run);
      path.style.opacity = kept ? .85 : .06;
      path.style.pointerEvents = kept ? "" : "none";
    });
    redraw();
  }

  highlight(run) {
    this.paths?.forEach((path, index) => path.style.strokeWidth = index === run ? "4" : "");
    if (run !== null && this.paths) this.svg.insertBefore(this.paths[run], this.svg.querySelector("g"));
  }

  words(run) {
    return [report.runs[run].label, ...this.axes.map((axis) => `${axis.path} ${axis.text(run)}`)].join("\n");
  }
}

/** An axis: numbers by their size, by powers where they cover a factor of 30, texts side by side. */
function axisOf(path, values, downwards = false) {
  const known = values.filter((value) => value !== null);
  const text = (run) => values[run] === null ? "none" : digits(values[run]);
  const flip = (share) => downwards ? 1 - share : share;
  if (known.length && known.every((value) => typeof value === "number")) {
    let [low, high] = bounds(known, false);
    const log = low > 0 && high / low > 30;
    const unit = log ? Math.log10 : (value) => value;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - .5, high + .5];
    const share = (value) => flip((unit(value) - unit(low)) / (unit(high) - unit(low)));
    const distinct = [...new Set(known)];
    const at = distinct.length <= 6 ? distinct : log ? logTicks(low, high) : ticks(low, high, 6);
    return { path, text, place: (run) => values[run] === null ? null : share(values[run]), ticks: at.map((value) => [share(value), short(value)]) };
  }
  const kinds = [...new Set(known.map(String))].sort();
  const share = (value) => kinds.length > 1 ? kinds.indexOf(String(value)) / (kinds.length - 1) : .5;
  return { path, text, place: (run) => values[run] === null ? null : share(values[run]), ticks: kinds.slice(0, 30).map((kind) => [share(kind), kind.length > 12 ? `${kind.slice(0, 11)}…` : kind]) };
}

/** A dotted path in two lines, its end whole as long as it fits. */
function shortened(path, most) {
  const parts = path.split(".");
  const end = parts.pop();
  const cut = (text) => text.length > most ? `…${text.slice(1 - most)}` : text;
  return parts.length ? [cut(`${parts.join(".")}.`), cut(end)] : [cut(end)];
}

function sweepSection(sweep) {
  const rows = new Map();
  let chosen = null;
  const choose = (run) => {
    rows.get(chosen)?.classList.remove("chosen");
    chosen = run;
    rows.get(run)?.classList.add("chosen");
    parallel.highlight(run);
  };
  const parallel = new Parallel(sweep, choose);
  const importance = el("table", { class: "data" }, el("tbody", {}, sweep.knobs.map((knob) => {
    const bar = el("div", { class: "importance" });
    bar.style.width = `${100 * (knob.importance ?? 0)}%`;
    return el("tr", {}, el("th", { scope: "row", class: "mono" }, knob.path), el("td", { class: "importance-cell" }, bar),
      el("td", { class: "number" }, knob.importance === null ? "not known" : `${(100 * knob.importance).toFixed(0)} %`));
  })));
  const columns = [{ title: "run", of: (run) => report.runs[run].label }, { title: sweep.objective, of: (run) => sweep.values[run], objective: true },
    ...sweep.knobs.map((knob) => ({ title: knob.path, of: (run) => knob.values[run] }))];
  const body = el("tbody");
  let order = ranking(sweep), sorted = 1, up = sweep.minimize, all = false;
  const show = () => {
    const shown = all ? order : order.slice(0, 20);
    rows.clear();
    body.replaceChildren(...shown.map((run) => {
      const cells = columns.map((column) => {
        const value = column.of(run);
        const text = value !== null ? digits(value) : column.objective && sweep.not_finite[run] ? "not finite" : "";
        return el("td", { class: typeof value === "number" ? "number" : "" }, column.title === "run" ? named(run) : text);
      });
      const row = el("tr", { tabindex: 0, on: { pointerenter: () => choose(run), pointerleave: () => choose(null), focus: () => choose(run) } }, cells);
      rows.set(run, row);
      return row;
    }));
    more.hidden = all || order.length <= 20;
  };
  const more = button("show all points", () => {
    all = true;
    show();
  });
  const heads = columns.map((column, index) => el("th", { scope: "col", class: index && typeof column.of(order[0]) === "number" ? "number" : "" }, button(column.title, () => {
    up = index === sorted ? !up : true;
    sorted = index;
    const key = column.of;
    order = order.slice().sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      const less = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right));
      return up ? less : -less;
    });
    show();
  }, { title: "sort" })));
  show();
  return [
    el("article", { class: "card" }, el("h3", {}, "Parallel coordinates"), el("p", { class: "soft small" }, `Each line is a run, and stands out the more the better its ${sweep.objective} is. Drag along an axis to keep the runs in a range, here and in the curves; click it to keep all.`), parallel.node),
    el("article", { class: "card" }, el("h3", {}, "Importance"), el("p", { class: "soft small" }, sweep.method), importance,
      sweep.left_out ? el("p", { class: "soft small" }, `${sweep.left_out} less important fields are left out.`) : null),
    el("article", { class: "card" }, el("h3", {}, "Points"), el("div", { class: "scroll" }, el("table", { class: "data points" }, el("thead", {}, el("tr", {}, heads)), body)), more),
  ];
}
