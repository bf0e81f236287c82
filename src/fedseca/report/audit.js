// An audit: who is suspicious, and since when; what each client did in each round; which rounds gave no model.

// Filled in from the data, in the order of the digits by which they name a verdict: its colour, its name, its meaning.
let VERDICTS = [];
const BLANK = "it was not asked, or nothing was written down of it";
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);

const lines = (words) => element("div", {}, ...words.map((word) => element("div", {}, word)));

function clientTable(clients) {
  const standing = (row) => (row.suspicious ? element("b", { class: "byzantine" }, row.standing) : row.standing);
  return table([
    { label: "client", class: "client", value: (row) => row.client }, { label: "standing", show: standing },
    { label: "since", class: "lines", show: (row) => lines(row.since || ["–"]) },
    { label: "rounds asked", number: true, value: (row) => row.asked }, { label: "no answer", number: true, value: (row) => row.no_answer },
    { label: "left out", number: true, value: (row) => row.left_out }, { label: "suspect", number: true, value: (row) => row.suspect },
    { label: "mean weight", number: true, value: (row) => percent(row.weight) },
    { label: "last reason", class: "reason", value: (row) => row.last_reason },
  ], clients, { class: "named" });
}

// A window on the rounds: as many as the screen has room for, or as few as one wants to see; a slider moves it.
function showMap(data) {
  const all = data.rounds.length;
  const room = (byId("map").clientWidth - 160) / 1.5; // pixels of a column, beside the names
  const sizes = [25, 100, 400].filter((size) => size < all);
  sizes.push(all);
  const size = element("select", { id: "size", change: () => move() },
    ...sizes.map((each) => element("option", { value: each, selected: each <= Math.max(room, 25) }, each === all ? `all ${all} rounds` : `${each} rounds`)));
  const last = element("input", { type: "range", id: "last", min: 1, max: all, step: 1, value: all, "aria-label": "the last round shown", input: () => move() });
  const output = element("output", { for: "last" });
  byId("map-controls").append(element("label", { for: "size" }, "Show"), size, last, output);
  byId("map-controls").hidden = sizes.length < 2;
  let first = 0;
  function move() {
    const count = Number(size.value);
    last.min = count;
    last.hidden = count === all;
    first = Number(last.value) - count;
    const [from, to] = [data.rounds[first], data.rounds[first + count - 1]];
    output.textContent = count === all ? "" : `round ${from.number} … ${to.number}`;
    if (drawn.has(byId("map"))) redraw(byId("map"));
  }
  move();
  const texts = data.map.map((course, k) => data.rounds.map((column, i) => words(data, data.clients[k], course, column, i)));
  byId("map").setAttribute("aria-label", `Map of ${plural(data.clients.length, "client")} by ${plural(all, "round")}; the table above has its sums`);
  byId("map-title").after(saving(byId("map-title").textContent, byId("map")));
  draw(byId("map"), () => mapOf(data, texts, first, Number(size.value)));
}

function mapOf(data, texts, first, count) {
  const width = byId("map").clientWidth;
  const names = data.clients.map((row) => shortened(row.client, width < 560 ? 9 : 22));
  const each = names.length <= 20 ? 24 : 15;
  const cell = (width - 24 - 7 * Math.max(...names.map((name) => name.length))) / count;
  const columns = data.rounds.slice(first, first + count);
  const rows = data.map.map((course) => [...course.verdicts.slice(first, first + count)].map((digit) => (digit === "-" ? null : Number(digit))));
  const share = 1 / VERDICTS.length;
  const runs = columns.map((column, i) => [i, column.run]).filter(([i, run]) => run !== null && (i === 0 || run !== columns[i - 1].run));
  return {
    traces: [{ type: "heatmap", z: rows, zmin: -0.5, zmax: VERDICTS.length - 0.5, showscale: false,
      colorscale: VERDICTS.flatMap(([name], i) => [[i * share, colour(name)], [(i + 1) * share, colour(name)]]),
      xgap: cell > 12 ? 2 : cell > 5 ? 1 : 0, ygap: 2, hoverongaps: true,
      text: texts.map((row) => row.slice(first, first + count)), hovertemplate: "%{text}<extra></extra>" }],
    layout: {
      height: Math.max(names.length * each + (runs.length ? 90 : 70), 230), margin: { l: 44, r: 12, t: runs.length ? 32 : 12, b: 44 },
      hoverlabel: { align: "left" },
      xaxis: xAxis({ ...ticks(columns, cell), range: [-0.5, count - 0.5], showgrid: false, title: { text: "round" } }),
      yaxis: yAxis({ tickvals: names.map((_, k) => k), ticktext: names.map(plain), autorange: "reversed", showgrid: false, tickfont: { size: each > 20 ? 12 : 10 } }),
      shapes: runs.map(([i]) => ({ type: "line", x0: i - 0.5, x1: i - 0.5, yref: "paper", y0: 0, y1: 1.02, line: { color: colour("ink"), width: 1 } })),
      annotations: runs.map(([i, run], k) => ({ text: plain(fitting(`run ${run}`, cell * ((k + 1 < runs.length ? runs[k + 1][0] : count) - i))),
        x: i - 0.5, xanchor: "left", yref: "paper", y: 1, yanchor: "bottom", showarrow: false })),
    },
  };
}

// The middle of a long name is what one can best do without.
const shortened = (name, most) => (name.length <= most ? name : `${name.slice(0, Math.floor(most / 2))}…${name.slice(-Math.floor((most - 1) / 2))}`);
const fitting = (label, width) => (7.5 * label.length <= width ? label : "");

// Round numbers under the columns, as many as can be read.
function ticks(columns, cell) {
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => each * cell >= 36) || 1000;
  const marked = columns.map((_, i) => i).filter((i) => columns[i].number % step === 0);
  const vals = marked.length ? marked : [0];
  return { tickvals: vals, ticktext: vals.map((i) => plain(columns[i].number)) };
}

function words(data, row, course, column, i) {
  const verdict = VERDICTS[course.verdicts[i]];
  const reason = course.reasons[i] === undefined ? verdict && verdict[2] : data.reasons[course.reasons[i]];
  const told = verdict ? `${verdict[1]}: ${reason}` : BLANK;
  const numbers = [course.norms[i] === null ? "" : `norm ${short(course.norms[i])}`, course.weights[i] === null ? "" : `weight ${percent(course.weights[i])}`];
  const kept = column.void === null ? "" : "the round kept the model it began with";
  const all = [`client ${row.client}`, ...column.name, ...broken(told), numbers.filter(Boolean).join(" · "), kept];
  return all.filter(Boolean).map(plain).join("<br>");
}

// Plotly breaks no lines, and shows no label that is higher than its plot.
const broken = (text) => (text.length > 160 ? `${text.slice(0, 159)}…` : text).match(/.{1,40}(?:\s|$)|.{1,40}/gu) || [];

function legend() {
  const entry = (colours, name, meaning) => element("li", {}, element("span", { class: "swatch state", style: `background: ${colours}` }), element("b", {}, name), `: ${meaning}`);
  return [...VERDICTS.map(([key, name, meaning]) => entry(`var(--${key})`, name, meaning)), entry("none", "blank", BLANK)];
}

function start() {
  const data = JSON.parse(byId("data").textContent);
  VERDICTS = data.verdicts.map(([kind, meaning]) => [kind.replaceAll(" ", "-"), kind, meaning]);
  byId("summary").textContent = data.summary;
  byId("source").textContent = data.source;
  byId("made-by").textContent = `Made by ${data.made_by}.`;
  fill(byId("clients"), clientTable(data.clients));
  byId("by-round").hidden = !data.clients.length;
  if (data.clients.length) showMap(data);
  byId("legend").replaceChildren(...legend());
  if (data.all_rounds > data.rounds.length) {
    byId("cut").textContent = `So that the page stays small, the map has the last ${data.rounds.length} of ${data.all_rounds} rounds; the table is of all of them.`;
    byId("cut").hidden = false;
  }
  const voids = data.rounds.filter((round) => round.void !== null).reverse();
  byId("voids").hidden = !voids.length;
  fill(byId("voids-table"), table([
    { label: "round", class: "lines", show: (round) => lines(round.name) }, { label: "why", class: "reason", value: (round) => round.void },
  ], voids));
  document.documentElement.dataset.ready = "true";
  performance.mark("ready");
  if (!drawn.size) settled();
}

start();
