// Plots in the colours of the page, drawn again when those or the width change.

const drawn = new Map();
const SETTINGS = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]] };
const LINES = ["#3b82d6", "#e6892e", "#7b61d1", "#17a2a2", "#d6579b", "#8a9a2a", "#a0673c", "#5a7fa0", "#c04848", "#3f9f5f"];
const DASHES = ["solid", "dash", "dot"];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Plotly reads some HTML in its texts; these are texts.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const rounds = (run) => run.f1.map((_, index) => index + 1);

function axis(extra) {
  return { gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true, ...extra };
}

function draw(place, make) {
  drawn.set(place, make);
  redraw(place);
}

function redraw(place) {
  if (!window.Plotly) return; // it comes after the tables, and draws then
  if (!place.isConnected) {
    drawn.delete(place);
    return;
  }
  const { traces, layout } = drawn.get(place)();
  Plotly.react(place, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    font: { color: colour("ink"), family: "system-ui, sans-serif", size: 12 },
    margin: { l: 44, r: 12, t: 12, b: 40 }, hovermode: "closest",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...layout,
  }, SETTINGS);
}

function redrawAll() {
  for (const place of [...drawn.keys()]) redraw(place);
}

let waiting = 0;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(redrawAll, 150);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
