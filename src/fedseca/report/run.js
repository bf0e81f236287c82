// One run: its course, the trust in its clients, who agrees with whom, who was left out, its config.

const clientName = (run, k) => `${k}${run.byzantine[k] ? " (Byzantine)" : ""}`;
const truth = (run, k) => element("span", { class: run.byzantine[k] ? "byzantine" : "honest" }, run.byzantine[k] ? "Byzantine" : "honest");

function runTitle(run) {
  const c = run.config;
  const named = (part) => {
    const settings = run.differs.filter(([path]) => path.startsWith(`${part}.`)).map(([path, value]) => assigned(path.slice(part.length + 1), value));
    return c[part] + (settings.length ? ` (${settings.join(", ")})` : "");
  };
  return `${named("aggregator")} under ${named("attack")} on ${named("dataset")}, seed ${c.seed}`;
}

// `others` are the runs of the same cell of the heat map.
function showRun(run, others = [run], focus = true) {
  const place = byId("run");
  const title = element("h2", { tabindex: "-1" }, runTitle(run));
  place.replaceChildren(title, ...choice(run, others), facts(run), differences(run), ...troubles(run), ...sent(run), ...thinned(run),
    element("div", { class: "columns" }, ...plots(run)), ...tables(run));
  place.dataset.run = run.folder;
  for (const card of place.querySelectorAll(".card")) if (card.start) card.start();
  if (focus) {
    title.scrollIntoView();
    title.focus({ preventScroll: true });
  }
}

function choice(run, others) {
  if (others.length < 2) return [];
  const select = element("select", { id: "which", change: () => {
    showRun(others[select.selectedIndex], others, false);
    byId("which").focus();
  } }, ...others.map((each) => element("option", { selected: each === run }, `seed ${each.config.seed} · ${each.metric} ${score(each.score)} · ${each.folder}`)));
  return [element("p", { class: "controls" }, element("label", { for: "which" }, `One of ${others.length} runs of this cell:`), select)];
}

function facts(run) {
  const fact = (name, value) => element("li", {}, `${name} `, element("b", {}, value));
  return element("ul", { class: "facts" },
    fact(`${run.metric} (last ${Math.min(5, run.rounds)} rounds)`, score(run.score)), ...Object.keys(run.beside).map((name) => fact(name, score(lastOf(run, name)))),
    fact("rounds", `${run.rounds} of ${run.config.rounds}`), fact("state", run.finished ? "finished" : "unfinished"),
    fact("clients", `${run.byzantine.length}, ${mean(run.byzantine) * run.byzantine.length} of them Byzantine`),
    fact("fedseca", said(run.version)), fact("folder", run.folder));
}

// What makes it this run and no other: in an ablation, which part is taken away.
function differences(run) {
  if (!run.differs.length) return element("p", { class: "hint", id: "differs" }, "All settings have their defaults.");
  const entries = run.differs.map(([path, value, usual, help]) => element("li", {},
    element("code", {}, assigned(path, value)), ` (default ${usual === null ? "none" : usual})`, element("span", { class: "hint" }, `: ${help}`)));
  return element("div", { id: "differs" }, element("h3", {}, "Not the default"), element("ul", {}, ...entries));
}

// Of a metric that stands beside the score.
function lastOf(run, name) {
  const last = known((run.beside[name] ?? []).slice(-5));
  return last.length ? mean(last) : null;
}

function troubles(run) {
  const lines = [];
  const ofRounds = (count) => `${count} of ${plural(run.rounds, "round")}`;
  if (!run.finished) lines.push(`This run is not finished: ${run.rounds} of ${run.config.rounds} rounds are written down.`);
  if (run.void.length) lines.push(`${ofRounds(run.void.length)} void, the model stayed as it was; the last: ${run.void.at(-1)[1]}`);
  if (run.idle.length) lines.push(`In ${ofRounds(run.idle.length)} the rule took nothing from any client: all had weight 0.`);
  return lines.map((line) => element("p", { class: "warning" }, line));
}

// Of an attack that chooses each round anew.
function sent(run) {
  if (!run.crafts.length) return [];
  const entries = run.crafts.map(([craft, rounds]) => element("li", {}, element("code", {}, craft), ` in ${rounds.length > 1 ? "rounds" : "round"} ${rounds.join(", ")}`));
  return [element("details", { id: "crafts" }, element("summary", {}, `What the Byzantine clients sent: ${plural(run.crafts.length, "craft")}, most often ${run.crafts[0][0]}`), element("ul", {}, ...entries))];
}

function card(title, label, controls, make) {
  const plot = element("div", { class: "plot", role: "img", "aria-label": label });
  const made = element("figure", { class: "card" }, element("div", { class: "head" }, element("h3", {}, title), saving(title, plot)), ...controls, plot);
  made.start = () => draw(plot, make);
  made.again = () => redraw(plot);
  return made;
}

function plots(run) {
  const cards = [courseCard(run), lossCard(run)];
  if (Object.keys(run.columns).length && run.columns_rounds.length) cards.push(trustCard(run));
  if (run.pairs && run.pairs.rounds.length) cards.push(pairsCard(run));
  return cards;
}

// What a page of many runs or clients has no room for.
function thinned(run) {
  if (!run.thinned.length) return [];
  const parts = run.thinned.map(([what, kept, all]) => (kept ? `${what} are those of ${kept} of ${plural(all, "round")}` : `${what} are left out`));
  return [element("p", { class: "hint", id: "thinned" }, `So that the page stays small, ${parts.join(" and ")}; a page of fewer runs has more.`)];
}

function courseCard(run) {
  const line = (name, values, dash) => ({ x: rounds(run), y: values, name, mode: "lines", line: { color: colour(dash === "solid" ? "accent" : "faint"), dash, width: 2 } });
  const { metric, beside } = run;
  const others = Object.keys(beside);
  return card([metric, ...others].join(" and "), `${metric} over ${run.rounds} rounds, at the end ${score(run.scores.at(-1))}`, [], () => ({
    traces: [line(metric, run.scores, "solid"), ...others.map((name) => line(name, beside[name], name === "attack success rate" ? "dash" : "dot"))],
    layout: { height: 300, xaxis: xAxis({ title: { text: "round" } }), yaxis: yAxis({ range: [Math.min(0, ...known(run.scores)), 1.02] }) },
  }));
}

function lossCard(run) {
  const values = known(run.loss).filter((value) => value > 0);
  const wide = values.length > 0 && Math.max(...values) > 100 * Math.min(...values);
  return card("Loss on the test set", `Loss over ${run.rounds} rounds, at the end ${short(run.loss.at(-1))}`, [], () => ({
    traces: [{ x: rounds(run), y: run.loss, name: "loss", mode: "lines", line: { color: colour("accent"), width: 2 } }],
    layout: { height: 300, xaxis: xAxis({ title: { text: "round" } }), yaxis: yAxis(wide ? { type: "log" } : { rangemode: "tozero" }) },
  }));
}

// Honest clients green, Byzantine ones red and dashed.
function trustCard(run) {
  const names = Object.keys(run.columns);
  const select = element("select", { id: "column", change: () => made.again() },
    ...names.map((name) => element("option", { value: name }, run.headings[name].filter(Boolean).join(": "))));
  const label = element("p", { class: "controls" }, element("label", { for: "column" }, "Show"), select);
  const made = card("The clients over the rounds", "A line for each client: honest ones green, Byzantine ones red and dashed", [label], () => {
    const named = { 0: false, 1: false };
    const traces = run.columns[names[select.selectedIndex]].map((values, k) => {
      const group = run.byzantine[k] ? "Byzantine" : "honest";
      const first = !named[run.byzantine[k]];
      named[run.byzantine[k]] = true;
      return { x: run.columns_rounds, y: values, name: group, legendgroup: group, showlegend: first, mode: run.columns_rounds.length < 2 ? "markers" : "lines",
        line: { color: colour(group.toLowerCase()), width: 1.7, dash: run.byzantine[k] ? "dash" : "solid" },
        hovertemplate: `client ${plain(clientName(run, k))}<br>round %{x}: %{y:.4g}<extra></extra>` };
    });
    return { traces, layout: { height: 330, xaxis: xAxis({ title: { text: "round" } }), yaxis: yAxis({ rangemode: "tozero" }) } };
  });
  return made;
}

function pairsCard(run) {
  const { rounds: when, matrices } = run.pairs;
  const size = run.byzantine.length;
  const slider = element("input", { type: "range", id: "round", min: 0, max: when.length - 1, step: 1, value: when.length - 1, input: () => show() });
  const output = element("output", { for: "round" });
  const controls = element("p", { class: "controls" }, element("label", { for: "round" }, "Round"), slider, output);
  const labels = run.byzantine.map((byzantine, k) => `${k}${byzantine ? " B" : ""}`);
  const made = card(run.pairs.heading, `${run.pairs.heading}: a heat map of each pair of clients in the chosen round`, [controls], () => {
    const flat = matrices[Number(slider.value)];
    const rows = labels.map((_, i) => flat.slice(i * size, (i + 1) * size));
    const few = size <= 12;
    return {
      traces: [{ type: "heatmap", z: rows, x: labels, y: labels, zmin: -1, zmax: 1, xgap: few ? 2 : 0, ygap: few ? 2 : 0,
        colorscale: [[0, colour("against")], [0.5, colour("neither")], [1, colour("with")]], colorbar: { thickness: 12, outlinewidth: 0 },
        texttemplate: few ? "%{z:.2f}" : undefined, textfont: { size: 11 },
        hovertemplate: "clients %{y} and %{x}: %{z:.3f}<extra></extra>" }],
      layout: { height: 360, xaxis: xAxis({ type: "category", title: { text: "client (B: Byzantine; gap: not admitted)" }, showgrid: false }),
        yaxis: yAxis({ type: "category", autorange: "reversed", showgrid: false }) },
    };
  });
  if (run.pairs.note) made.append(element("figcaption", {}, run.pairs.note));
  const show = () => {
    output.textContent = `${when[Number(slider.value)]} of ${run.rounds}`;
    slider.setAttribute("aria-valuetext", `round ${when[Number(slider.value)]}`);
    if (made.isConnected) made.again();
  };
  show();
  return made;
}

function tables(run) {
  const framed = (id, title, inner) => element("section", { class: "below", "aria-labelledby": id }, element("h3", { id }, title), boxed(id, inner));
  const boxed = (id, inner) => {
    const outer = element("div", {});
    const box = element("div", { class: "wide", role: "region", "aria-labelledby": id, tabindex: "0" });
    outer.append(box);
    fill(box, inner);
    return outer;
  };
  const rejections = run.rejected.length
    ? table([
        { label: "client", number: true, value: (row) => row[0] }, { label: "truth", show: (row) => truth(run, row[0]) },
        { label: "reason", class: "reason", value: (row) => row[1] },
        { label: "how often", number: true, value: (row) => `${row[2]} of ${run.rounds}` },
        { label: "rounds", number: true, value: (row) => (row[3] === row[4] ? row[3] : `${row[3]} … ${row[4]}`) },
      ], run.rejected, { id: "rejections" })
    : element("p", {}, "No client was left out of any round.");
  const config = table([{ label: "setting", value: (row) => row[0] }, { label: "value", class: "text", value: (row) => row[1] }], Object.entries(run.config), { id: "config" });
  return [
    framed("clients-title", "The clients, means over the rounds", clientTable(run)),
    framed("rejections-title", "Who was left out, and why", rejections),
    element("details", { class: "below" }, element("summary", { id: "config-title" }, "Config"), boxed("config-title", config)),
  ];
}

function clientTable(run) {
  const count = (k, letter) => run.status[k].split(letter).length - 1;
  const present = (k) => run.status[k].length - count(k, "-");
  const columns = [
    { label: "client", number: true, value: (k) => k }, { label: "truth", show: (k) => truth(run, k) },
    { label: "present", number: true, value: (k) => `${present(k)} of ${run.rounds}` },
    { label: "left out", number: true, value: (k) => count(k, "r") },
    { label: "suspect", number: true, value: (k) => count(k, "s") },
  ];
  for (const [name, means] of Object.entries(run.means)) {
    columns.push({ label: run.headings[name][0], help: run.headings[name][1], number: true, value: (k) => means[k] });
  }
  return table(columns, run.byzantine.map((_, k) => k), { id: "clients", class: "named" });
}
