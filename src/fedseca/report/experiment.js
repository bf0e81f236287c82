// Tables and figures of the paper, made again: our numbers over the paper's, and the pictures.

const SHARES = ["f1", "accuracy"];
const words = (name) => (name === "f1" ? "F1" : name.replaceAll("_", " "));

function showExperiments(data) {
  byId("experiments").replaceChildren(...data.experiments.map((experiment, index) => experimentSection(experiment, index, data)));
  byId("experiments").hidden = false;
  if (data.experiments.length === 1) document.title = `${data.experiments[0].title} · fedseca report`;
}

// The runs of a cell: of those with the same config, the one in the experiment's own folder.
function runsOf(cell, experiment, runs) {
  return cell.runs.flatMap((id) => {
    const same = runs.filter((run) => run.id === id);
    return same.find((run) => run.folder.startsWith(`${experiment.folder}/`)) || same[0] || [];
  });
}

function experimentSection(experiment, index, data) {
  const cells = new Map(experiment.cells.map((cell) => [JSON.stringify([cell.row, cell.column]), cell]));
  const most = Math.max(0, ...experiment.cells.map((cell) => cell.count));
  const hasPaper = experiment.cells.some((cell) => cell.paper !== null);
  // Of a share the digits that matter; of anything else, from a millionth to millions, the first ones.
  const show = (value, digits = 3) => (SHARES.includes(experiment.metric) ? value.toFixed(2) : short(value, digits));
  const kindOf = (name) => {
    const best = Math.max(0, ...known(experiment.cells.map((cell) => cell[name])));
    return (value) => (experiment.coloured ? verdict(value, best, data.limits) : "fine");
  };
  const ours = kindOf("mean"), theirs = kindOf("paper");

  function tile(cell) {
    if (!cell) return element("td", {}, element("span", {}, "–"));
    const opened = runsOf(cell, experiment, data.runs);
    const label = spoken(cell, opened.length);
    const inner = [part(cell.mean, ours, "ours", more(cell)), ...(cell.paper === null ? [] : [part(cell.paper, theirs, "paper", "")])];
    if (!opened.length) return element("td", { title: label, "aria-label": label }, element("div", { class: "tile" }, ...inner));
    return element("td", {}, element("button", { type: "button", class: "tile", title: label, "aria-label": label,
      click: () => showRun(opened[0], opened) }, ...inner));
  }

  function part(value, kind, name, more) {
    if (value === null) return element("span", { class: `${name} none` }, "–");
    const mark = VERDICTS[kind(value)][0];
    const made = element("span", { class: `${name} ${kind(value)}` }, show(value) + (mark && ` ${mark}`));
    if (more) made.append(element("small", {}, more));
    return made;
  }

  function spread(cell) {
    const fewer = cell.count < most ? `${cell.count} of ${most}` : "";
    return [deviation(cell), fewer].filter(Boolean).join(" · ");
  }

  // Of a targeted attack: how often it succeeds.
  const more = (cell) => [spread(cell), cell.success === null ? "" : `ASR ${cell.success.toFixed(2)}`, cell.note].filter(Boolean).join(" · ");

  const deviation = (cell) => (cell.std === null ? "" : `± ${show(cell.std, 2)}`);

  function spoken(cell, count) {
    const verdictOf = (kind, value) => (experiment.coloured ? `, ${VERDICTS[kind(value)][1]}` : "");
    const here = cell.mean === null ? "not measured"
      : `${words(experiment.metric)} ${show(cell.mean)} ${deviation(cell)} of ${plural(cell.count, "value")}${verdictOf(ours, cell.mean)}`;
    const paper = cell.paper === null ? "" : `; in the paper ${show(cell.paper)}${verdictOf(theirs, cell.paper)}`;
    const success = cell.success === null ? "" : `, attack success rate ${cell.success.toFixed(2)}`;
    return `${cell.row}, ${cell.column}: ${here}${success}${paper}${cell.note && `; ${cell.note}`}.${count ? ` Open ${plural(count, "run")}.` : ""}`;
  }

  const { rows, columns } = experiment;
  const head = element("tr", {}, element("th", { scope: "col" }, words(experiment.row_name)), ...columns.map((column) => element("th", { scope: "col" }, column)));
  const body = rows.map((row) => element("tr", {}, element("th", { scope: "row" }, row),
    ...columns.map((column) => tile(cells.get(JSON.stringify([row, column]))))));
  const title = `experiment-${index}`;
  const box = element("div", { class: "wide", role: "region", "aria-labelledby": title, tabindex: "0" });
  const which = hasPaper ? "of the best in the table, ours and the paper's each of its own" : "of the best in the table";
  const section = element("section", { class: "experiment", "aria-labelledby": title },
    element("h2", { id: title }, experiment.title),
    element("p", {}, element("code", {}, experiment.command)),
    element("p", { class: "hint" }, explained(experiment, most, hasPaper)),
    box,
    element("ul", { class: "legend" }, ...(experiment.coloured ? legend(data.limits, "", which) : [])),
    ...experiment.figures.map(pictured));
  fill(box, element("table", { class: "heat tiles" }, element("thead", {}, head), element("tbody", {}, ...body)));
  return section;
}

// As wide as can be read: on a phone it scrolls in its box.
function pictured(figure) {
  const box = element("div", { class: "wide", role: "region", "aria-label": figure.name, tabindex: "0" });
  const made = element("figure", {}, box, element("figcaption", {}, figure.name));
  fill(box, element("img", { src: `data:image/png;base64,${figure.png}`, alt: figure.text, loading: "lazy" }));
  return made;
}

function explained(experiment, most, hasPaper) {
  const { cells } = experiment;
  const parts = [`${experiment.setting ? `${experiment.setting}. ` : ""}${words(experiment.metric)} by ${words(experiment.row_name)} and ${words(experiment.column_name)}`];
  if (most > 1) parts.push(`mean ± standard deviation of ${most} values`);
  if (cells.some((cell) => cell.success !== null)) parts.push("ASR: attack success rate, how often a targeted attack gets its class");
  if (hasPaper) parts.push(`below it, smaller, the paper's (${experiment.paper_setting})`);
  const fewer = cells.some((cell) => cell.count < most) ? ` Some cells have fewer values yet.` : "";
  return `${parts.join("; ")}.${fewer}${cells.some((cell) => cell.runs.length) ? " A cell opens its run below." : ""}`;
}
