// Many runs: filters, the heat map of rules and attacks, the courses, the table.

// The paper's colours, and a mark for those who do not see them.
const VERDICTS = {
  collapsed: ["✕", "collapsed"], severe: ["▼", "severely impacted"], noticeable: ["▽", "noticeable drop"], fine: ["", "fine"],
};
const NAMES = new Map([["dataset", "data set"], ["aggregator", "rule"], ["attack", "attack"], ["seed", "seed"]]);

// Settings that differ between runs of the same rule, attack and data: each has a filter, unless there are too many.
const MOST_FILTERS = 3;
const MOST_PANELS = 30;

function showGrid(data) {
  const settings = data.varied.filter((name) => !NAMES.has(name));
  const plans = plansOf(data, settings);
  let plan = plans[0];
  const best = new Map();
  for (const run of data.runs) best.set(run.config.dataset, Math.max(best.get(run.config.dataset) || 0, run.score));
  const filters = makeFilters(data, settings, () => update());
  const order = { column: 0, down: false };
  const columns = runColumns(data.runs, settings);
  let shown = [];

  function update() {
    shown = data.runs.filter((run) => filters.every((filter) => filter(run)));
    byId("shown").textContent = `${shown.length} of ${plural(data.runs.length, "run")} chosen` + (shown.length ? "" : ": choose at least one value in each group");
    if (!byId("by-rule").hidden) fill(byId("scores"), heatMap(shown, best, settings, data));
    redraw(byId("courses"));
    showTable();
  }

  function showTable() {
    const { value } = columns[order.column];
    shown.sort((a, b) => (order.down ? -1 : 1) * inOrder(value(a), value(b)) || inOrder(a.folder, b.folder));
    const body = shown.map((run) => element("tr", { class: "opens", click: () => showRun(run) }, ...columns.map((column) => cell(column, run))));
    const pressed = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.sort : undefined;
    fill(byId("runs"), element("table", { class: "named" }, sortable(columns, order, sort), element("tbody", {}, ...body)));
    if (pressed !== undefined) byId("runs").querySelector(`[data-sort="${pressed}"]`).focus();
  }

  function sort(index) {
    order.down = order.column === index ? !order.down : false;
    order.column = index;
    showTable();
  }

  byId("grid").hidden = false;
  byId("by-rule").hidden = !outside(data).length; // the tables of experiments say it better
  byId("defaults").hidden = !settings.length;
  byId("scores-title").textContent = `${metrics(data.runs)} by rule and attack`;
  byId("courses-title").textContent = `${metrics(data.runs)} over the rounds`;
  byId("legend").replaceChildren(...legend(data.limits, `${metrics(data.runs)} `, `of the ${metrics(data.runs)} of the best run on the same data`));
  if (data.runs.some((run) => !run.finished)) byId("legend").append(element("li", {}, "* with unfinished runs"));
  byId("csv").addEventListener("click", () => download("runs.csv", csv([...columns, ...settings.map(setting)], shown)));
  drawn.set(byId("courses"), () => courses(plan, shown));
  byId("courses-title").after(saving(byId("courses-title").textContent, byId("courses")));
  if (plans.length > 1) {
    const select = element("select", { id: "plan", change: () => {
      plan = plans[select.selectedIndex];
      redraw(byId("courses"));
    } }, ...plans.map((each) => element("option", {}, each.name)));
    byId("courses-controls").append(element("label", { for: "plan" }, "Panels by"), select);
    byId("courses-controls").hidden = false;
  }
  update();
}

// The runs that stand in no cell of an experiment.
function outside({ runs, experiments }) {
  const inside = new Set(experiments.flatMap((experiment) => experiment.cells.flatMap((cell) => cell.runs)));
  return runs.filter((run) => !inside.has(run.id));
}

// In which of these settings a run is not what the names alone stand for; without the part they belong to.
function differing(run, settings, part = "") {
  return run.differs.filter(([path]) => settings.includes(path)).map(([path, value]) => assigned(path.slice(path.startsWith(part) ? part.length : 0), value));
}

const metrics = (runs) => [...new Set(runs.map((run) => run.metric))].join(" or ");
const distinct = (runs, name) => [...new Set(runs.map((run) => run.config[name]))].sort(inOrder);

// A group of checkboxes for the data, the rule, the attack, the seed, and whatever else differs between runs: each
// setting by itself, or where they are many, as in an ablation, all together.
function makeFilters(data, settings, onChange) {
  const names = [...NAMES.keys(), ...(settings.length > MOST_FILTERS ? [] : settings)];
  const groups = names.map((name) => [NAMES.get(name) || name, (run) => run.config[name]]);
  if (settings.length > MOST_FILTERS) groups.push(["settings", settingsColumn(settings).value]);
  groups.push(["state", (run) => (run.finished ? "finished" : "unfinished")]);
  // A run that has no such setting (the hyperparameter of another rule) is not touched by its filter.
  const valuesOf = (valueOf) => [...new Set(data.runs.map(valueOf).filter((value) => value !== undefined))].sort(inOrder);
  const filters = groups.filter(([, valueOf]) => valuesOf(valueOf).length > 1).map(([label, valueOf], index) => {
    const values = valuesOf(valueOf);
    const chosen = new Set(values);
    const boxes = values.map((value) => element("input", { type: "checkbox", checked: true, name: `filter-${index}`, value: said(value), change: (event) => {
      if (event.target.checked) chosen.add(value);
      else chosen.delete(value);
      onChange();
    } }));
    const all = (on) => {
      boxes.forEach((box, i) => {
        box.checked = on;
        if (on) chosen.add(values[i]);
        else chosen.delete(values[i]);
      });
      onChange();
    };
    const choices = boxes.map((box, i) => element("label", {}, box, said(values[i])));
    const both = element("div", { class: "both" },
      element("button", { type: "button", "aria-label": `${label}: all`, click: () => all(true) }, "all"),
      element("button", { type: "button", "aria-label": `${label}: none`, click: () => all(false) }, "none"));
    byId("filters").append(element("fieldset", { "data-filter": label }, element("legend", {}, label), element("div", { class: "choices" }, ...choices), both));
    return (run) => valueOf(run) === undefined || chosen.has(valueOf(run));
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  return filters;
}

// As fedseca.paper.verdict; where nothing learnt anything, all collapsed.
const verdict = (value, best, limits) => (best > 0 ? Object.keys(limits).find((name) => value < limits[name] * best) || "fine" : "collapsed");

function legend(limits, what, share) {
  const below = (name) => (name in limits ? `: ${what}below ${Math.round(100 * limits[name])} %` : "");
  const entries = Object.entries(VERDICTS).map(([name, [mark, meaning]]) =>
    element("li", {}, element("span", { class: `swatch ${name}` }, mark || "–"), meaning + below(name)));
  return [...entries, element("li", {}, `(%: ${share})`)];
}

// A row is a rule, a column an attack, each with the settings in which runs differ: a cell holds what differs in the seed only.
function placing(all, settings) {
  const ofAttack = (name) => name.startsWith("attack.");
  const label = (run, first, names, part) => [...first.map((name) => run.config[name]), ...differing(run, names, part)].join(" · ");
  const down = distinct(all, "dataset").length > 1 ? ["aggregator", "dataset"] : ["aggregator"];
  return {
    rowOf: (run) => label(run, down, settings.filter((name) => !ofAttack(name)), "aggregator."),
    columnOf: (run) => label(run, ["attack"], settings.filter(ofAttack), "attack."),
  };
}

function heatMap(runs, best, settings, { runs: all, limits }) {
  const { rowOf, columnOf } = placing(all, settings);
  const [rows, columns] = [rowOf, columnOf].map((of) => [...new Set(runs.map(of))].sort(inOrder));
  const cells = new Map();
  for (const run of runs) {
    const place = JSON.stringify([rowOf(run), columnOf(run)]);
    cells.set(place, [...(cells.get(place) || []), run]);
  }
  const head = element("tr", {}, element("th", { scope: "col" }, "rule"), ...columns.map((column) => element("th", { scope: "col" }, column)));
  const body = rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row),
    ...columns.map((column) => heatCell(cells.get(JSON.stringify([row, column])) || [], best, limits, row, column))));
  return element("table", { class: "heat" }, element("thead", {}, head), element("tbody", {}, ...body));
}

function heatCell(runs, best, limits, row, column) {
  if (!runs.length) return element("td", {}, element("span", {}, "–"));
  runs.sort((a, b) => inOrder(a.config.seed, b.config.seed));
  const scores = runs.map((run) => run.score);
  const kind = verdict(mean(scores), best.get(runs[0].config.dataset), limits);
  const value = score(mean(scores));
  const spread = runs.length > 1 ? ` ± ${score(deviation(scores))}` : "";
  const unfinished = runs.some((run) => !run.finished) ? "*" : "";
  const words = `${row} under ${column}: ${metrics(runs)} ${value}${spread}, ${VERDICTS[kind][1]}, ${plural(runs.length, "run")}${unfinished && ", some unfinished"}. Open.`;
  const button = element("button", { type: "button", class: kind, "aria-label": words, title: words, click: () => showRun(runs[0], runs) }, `${value}${unfinished} ${VERDICTS[kind][0]}`);
  if (spread) button.append(element("small", {}, `${spread.trim()} · ${plural(runs.length, "run")}`));
  return element("td", {}, button);
}

// Where the course of a run is drawn: of an experiment a panel for each row of its table, the colour being that of the
// column (a run may stand in several of its cells); of other runs a panel for each rule and the colour of the attack.
function plansOf(data, settings) {
  const plans = data.experiments.filter((each) => each.coloured) // else its rows may be other things than groups of runs
    .map((each) => ({ name: each.title, panels: each.rows, kinds: each.columns, lines: (shown) => each.cells.flatMap((cell) =>
      runsOf(cell, each, shown).map((run) => ({ run, panel: cell.row, kind: cell.column }))) }));
  return plans.length && !outside(data).length ? plans : [...plans, planByRule(data.runs, settings)];
}

function planByRule(runs, settings) {
  const by = placing(runs, settings);
  const of = (places) => [...new Set(runs.map(places))].sort(inOrder);
  const rowOf = of(by.rowOf).length > MOST_PANELS ? (run) => run.config.aggregator : by.rowOf;
  return { name: "rule and attack", panels: of(rowOf), kinds: of(by.columnOf),
    lines: (shown) => shown.map((run) => ({ run, panel: rowOf(run), kind: by.columnOf(run) })) };
}

function courses(plan, runs) {
  const lines = plan.lines(runs);
  const { kinds } = plan; // of all runs: a colour stays when others are filtered out
  const panels = plan.panels.filter((name) => lines.some((line) => line.panel === name));
  const shown = kinds.filter((kind) => lines.some((line) => line.kind === kind));
  const least = Math.min(0, ...lines.flatMap((line) => line.run.scores.filter((score) => score !== null))); // R² may be negative
  const width = byId("courses").clientWidth;
  const narrow = width < 560;
  const across = Math.max(1, Math.min(panels.length, Math.floor(width / (narrow ? 150 : 270))));
  const down = Math.max(1, Math.ceil(panels.length / across));
  const panel = narrow ? 150 : 190, top = 16 + 22 * Math.ceil(shown.length / Math.max(1, Math.floor(width / 110))), bottom = 20;
  const height = top + bottom + down * panel;
  const inner = down * panel;
  const layout = { height, margin: { l: 36, r: 8, t: top, b: bottom }, annotations: [],
    legend: { orientation: "h", yref: "container", y: 1, yanchor: "top", x: 0, xanchor: "left" } };
  panels.forEach((name, index) => {
    const suffix = index ? String(index + 1) : "";
    const column = index % across, row = Math.floor(index / across);
    const left = column / across, right = (column + 1) / across - (across > 1 ? (narrow ? 0.08 : 0.03) : 0);
    const high = 1 - (row * panel + 24) / inner, low = 1 - ((row + 1) * panel - 24) / inner;
    const lowest = index + across >= panels.length;
    layout[`xaxis${suffix}`] = xAxis({ domain: [left, right], anchor: `y${suffix}`, automargin: false, nticks: narrow ? 3 : 5, title: lowest ? { text: "round", standoff: 4 } : undefined });
    layout[`yaxis${suffix}`] = yAxis({ domain: [low, high], anchor: `x${suffix}`, automargin: false, range: [least, 1.02], tickvals: least < 0 ? [least, 0, 1] : [0, 0.5, 1], tickformat: ".2~f" });
    const room = Math.floor(((right - left) * (width - 44)) / (narrow ? 6 : 7.2)); // in letters
    layout.annotations.push({ text: `<b>${plain(cut(name, room))}</b>`, hovertext: plain(name), font: { size: narrow ? 10 : 12 }, xref: "paper", yref: "paper", x: left, y: high, xanchor: "left", yanchor: "bottom", showarrow: false });
  });
  const named = new Set();
  const traces = lines.map(({ run, panel: name, kind }) => {
    const at = kinds.indexOf(kind), panelAt = panels.indexOf(name);
    const first = !named.has(kind);
    named.add(kind);
    return { x: rounds(run), y: run.scores, name: plain(kind), legendgroup: kind, legendrank: at, showlegend: first, mode: run.rounds < 2 ? "markers" : "lines",
      xaxis: `x${panelAt ? panelAt + 1 : ""}`, yaxis: `y${panelAt ? panelAt + 1 : ""}`,
      line: { color: LINES[at % LINES.length], dash: DASHES[Math.floor(at / LINES.length) % DASHES.length], width: 1.5 },
      hovertemplate: `${plain(name)}<br>${plain(kind)}, ${plain(run.config.dataset)}, seed ${run.config.seed}<br>round %{x}: %{y:.3f}<extra></extra>` };
  });
  return { traces, layout };
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
const setting = (name) => ({ label: NAMES.get(name) || name, value: (run) => (run.config[name] === undefined ? null : run.config[name]) });
const settingsColumn = (settings) => ({ label: "settings", class: "settings", value: (run) => differing(run, settings, "aggregator.").join(", ") || "default" });

function runColumns(runs, settings) {
  const open = (run) => element("button", { type: "button", click: (event) => {
    event.stopPropagation();
    showRun(run);
  }, "aria-label": `Open ${runTitle(run)}` }, run.config.aggregator);
  return [
    { ...setting("aggregator"), show: open }, ...(settings.length ? [settingsColumn(settings)] : []),
    setting("attack"), setting("dataset"), { ...setting("seed"), number: true },
    { label: metrics(runs), number: true, value: (run) => run.score, show: (run) => score(run.score) },
    ...[...new Set(runs.flatMap((run) => Object.keys(run.beside)))].map((name) => (
      { label: name, number: true, value: (run) => lastOf(run, name), show: (run) => score(lastOf(run, name)) })),
    { label: "rounds done", number: true, value: (run) => run.rounds },
    { label: "left out", number: true, value: (run) => run.rejected.reduce((sum, row) => sum + row[2], 0) },
    { label: "void", number: true, value: (run) => run.void.length },
    { label: "idle", number: true, value: (run) => run.idle.length },
    { label: "state", value: (run) => (run.finished ? "finished" : "unfinished") },
    { label: "folder", class: "path", value: (run) => run.folder },
  ];
}
