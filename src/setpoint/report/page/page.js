// The page, from top to bottom.
const report = JSON.parse(document.getElementById("data").textContent);
const MOST_NAMED = 12;

const navigation = el("nav", { "aria-label": "sections" });
const main = el("main");

/** A section of the page and its link; none where there is nothing to show. */
function section(id, title, ...content) {
  const nodes = content.flat(Infinity).filter((node) => node);
  if (!nodes.length) return;
  navigation.append(el("a", { href: `#${id}` }, title));
  main.append(el("section", { id }, el("h2", {}, title), nodes));
}

function themeSwitch() {
  return el("div", { class: "switch" }, choice("theme", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], "auto", (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }));
}

function fact(name, value) {
  return typeof value !== "number" ? String(value) : name === "training time" ? duration(value) : digits(value, 5);
}

function overview() {
  const tags = (run) => run.tags.map((tag) => el("span", { class: "tag" }, tag));
  if (report.runs.length === 1) {
    const [run] = report.runs;
    return [el("article", { class: "card" }, el("span", { class: `status ${run.status}` }, run.status), " ", tags(run),
      run.note ? el("p", {}, run.note) : null,
      el("dl", { class: "tiles" }, run.facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, fact(name, value))))))];
  }
  const names = [...new Set(report.runs.flatMap((run) => run.facts.map(([name]) => name)))];
  const all = el("input", { type: "checkbox", checked: true, "aria-label": "show all runs" });
  const boxes = report.runs.map((run, index) => {
    const box = el("input", { type: "checkbox", checked: true, "aria-label": `show ${run.label}` });
    box.addEventListener("change", () => {
      view.hidden[box.checked ? "delete" : "add"](index);
      redraw();
    });
    return box;
  });
  all.addEventListener("change", () => boxes.forEach((box) => {
    if (box.checked !== all.checked) box.click();
  }));
  const rows = report.runs.map((run, index) => {
    const facts = new Map(run.facts);
    return el("tr", {}, el("td", {}, boxes[index]), el("td", {}, named(index), tags(run)), el("td", {}, el("span", { class: `status ${run.status}` }, run.status)),
      names.map((name) => el("td", { class: name === "fingerprint" ? "mono" : "number" }, facts.has(name) ? fact(name, facts.get(name)) : "")));
  });
  const table = el("div", { class: "scroll" }, el("table", { class: "data" }, el("thead", {}, el("tr", {}, el("th", {}, all), ["run", "status"].map((name) => el("th", { scope: "col" }, name)),
    names.map((name) => el("th", { scope: "col", class: name === "fingerprint" ? "" : "number" }, name)))), el("tbody", {}, rows)));
  if (report.runs.length <= MOST_NAMED) return [el("article", { class: "card" }, table)];
  return [el("article", { class: "card" }, el("details", {}, el("summary", {}, `${report.runs.length} runs`), table))];
}

/** Where a run went on, failed or went back: drawn into its curves where it is alone. */
function marksOf() {
  if (report.runs.length !== 1) return [];
  const [run] = report.runs;
  const rows = run.x.step.map((step, index) => [step, index]).filter(([step]) => step !== null).sort((a, b) => a[0] - b[0]);
  return run.events.filter((event) => event.step !== null && ["resume", "restart", "fault", "rollback"].includes(event.event)).map((event) => {
    const row = rows.find(([step]) => step >= event.step);
    const of = (axis) => row === undefined ? NaN : run.x[axis][row[1]];
    return { text: `${event.event} at step ${event.step}`, x: { step: event.step, tokens: of("tokens"), time: of("time") } };
  });
}

function curves() {
  if (!report.panels.length) return [el("p", { class: "empty" }, "There are no metrics.")];
  const marks = marksOf();
  const charts = report.panels.map((panel) => [panel, new Chart(plainName(panel.title), report.runs, panel.columns, marks)]);
  const ends = ["from", "to"].map((name) => el("input", { type: "text", class: "range", inputmode: "decimal", "aria-label": `${name} this ${name === "from" ? "start" : "end"} of the axis`, placeholder: name }));
  const reset = button("reset zoom", () => zoom(null), { hidden: true });
  const typed = () => {
    const [low, high] = ends.map((end) => end.value.trim() === "" ? NaN : Number(end.value));
    if (Number.isFinite(low) && Number.isFinite(high)) zoom([low, high]);
  };
  ends.forEach((end) => end.addEventListener("change", typed));
  document.addEventListener("zoomed", () => {
    reset.hidden = !view.range;
    ends.forEach((end, at) => end.value = view.range ? String(Number(view.range[at].toPrecision(6))) : "");
  });
  const weight = el("output", {}, "0");
  const smooth = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": "smoothing", on: { input: () => {
    view.smooth = Number(smooth.value);
    weight.textContent = smooth.value;
    redraw();
  } } });
  const toggle = (text, key) => {
    const box = el("input", { type: "checkbox", on: { change: () => {
      view[key] = box.checked;
      redraw();
    } } });
    return el("label", {}, box, text);
  };
  const tools = el("div", { class: "tools" },
    choice("horizontal axis", [["step", "steps"], ["tokens", "tokens"], ["time", "time"]], "step", (axis) => {
      view.axis = axis;
      zoom(null);
    }),
    el("label", {}, "smoothing", smooth, weight), toggle("log scale", "log"), toggle("clip outliers", "clip"), el("span", { class: "ends" }, ends), reset);
  const first = charts.filter(([panel]) => panel.main).map(([, chart]) => chart.node);
  const others = charts.filter(([panel]) => !panel.main);
  const hint = el("p", { class: "soft small" }, `Drag over a chart to zoom, double-click to reset; with the keyboard: arrows, + and -, 0.${view.colours ? ` Runs stand out the more the better their ${report.sweep.objective} is.` : ""} Learning rates and evaluations are not smoothed.`);
  const more = [];
  if (others.length) {
    const filter = el("input", { type: "search", placeholder: "search metrics", "aria-label": "search metrics", on: { input: () => {
      others.forEach(([, chart]) => chart.node.hidden = !chart.title.toLowerCase().includes(filter.value.trim().toLowerCase()));
      redraw();
    } } });
    more.push(el("details", { id: "more-metrics" }, el("summary", {}, `${others.length} more metrics`), el("div", { class: "tools" }, filter), el("div", { class: "grid" }, others.map(([, chart]) => chart.node))));
    more[0].addEventListener("toggle", redraw);
  }
  return [tools, el("div", { class: "grid" }, first), hint, ...more];
}

function remarks() {
  const items = [];
  const several = report.runs.length > 1;
  report.runs.forEach((run) => {
    const before = several ? `${run.label}: ` : "";
    run.cautions.forEach(([path, message, code]) => items.push(el("li", { class: "caution" }, `${before}${path}: ${message}`, code ? ` (${code})` : "")));
    run.problems.forEach((text) => items.push(el("li", { class: "problem" }, `${before}${text}`)));
  });
  report.notes.forEach((text) => items.push(el("li", {}, text)));
  return items.length ? [el("article", { class: "card" }, el("ul", { class: "plain" }, items))] : [];
}

if (report.sweep && report.runs.length > 8) view.colours = colourBySweep(report.sweep);
const title = el("div", {}, el("h1", {}, report.title), el("p", { class: "soft small" }, report.runs.length === 1 ? report.runs[0].path : report.runs.length > 3 ? `${report.runs.length} runs` : ""));
document.body.append(el("header", { class: "top" }, title, themeSwitch()), el("div", { class: "bar" }, navigation), main);

section("overview", "Overview", overview());
section("remarks", "Cautions and problems", remarks());
if (report.sweep) section("sweep", "Sweep", sweepSection(report.sweep));
section("curves", "Curves", curves());
if (report.runs.length > 1) {
  section("differences", "Differences", card(report.differences.length ? differenceTable(report.differences) : el("p", { class: "empty" }, "The configurations do not differ.")),
    report.environment_differences.length ? card(el("details", {}, el("summary", {}, el("h3", {}, `${report.environment_differences.length} differences of the environment`)), differenceTable(report.environment_differences))) : null);
}
section("time", "Time", time());
section("data", "Data", shares());
if (report.runs.some((run) => run.samples.length)) section("samples", "Samples", ofOneRun(samples));
section("events", "Events", card(timeline(), report.runs.length > LANES ? el("p", { class: "soft small" }, `The first ${LANES} of ${report.runs.length} runs.`) : null), card(ofOneRun(events)));
section("configuration", "Configuration", card(ofOneRun(configuration)));
section("environment", "Environment", card(ofOneRun(environment)));
document.body.append(el("footer", {}, `setpoint ${report.version}, written ${report.written} UTC`));
