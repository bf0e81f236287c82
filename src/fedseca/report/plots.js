// Plots in the colours of the page, drawn when they come near the window, and again when those or the width change.

const drawn = new Map();
// Plotly's own bar of buttons lies over the plots and is out of reach of keys: a button beside each title does its work.
const SETTINGS = { responsive: true, displayModeBar: false };
const LINES = ["#3b82d6", "#e6892e", "#7b61d1", "#17a2a2", "#d6579b", "#8a9a2a", "#a0673c", "#5a7fa0", "#c04848", "#3f9f5f"];
const DASHES = ["solid", "dash", "dot"];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Plotly reads some HTML in its texts; these are texts.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const rounds = (run) => run.scores.map((_, index) => index + 1);

// Each makes room on its own side only: on all sides, two of them can push each other back and forth without end.
const axis = (automargin, extra) => ({ gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin, ...extra });
const xAxis = (extra) => axis("bottom", extra);
const yAxis = (extra) => axis("left", extra);

function draw(place, make) {
  drawn.set(place, make);
  redraw(place);
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) paint(entry.target);
  settled();
}, { rootMargin: "200px 0px" });

// The observer answers for every place that is new to it, so to watch it anew is to draw it: now, or when it comes near.
function redraw(place) {
  watcher.unobserve(place);
  if (!place.isConnected) {
    drawn.delete(place);
    return;
  }
  delete document.documentElement.dataset.drawn;
  place.style.minHeight = `${drawn.get(place)().layout.height}px`; // nothing moves when it is drawn
  watcher.observe(place);
}

function paint(place) {
  watcher.unobserve(place);
  // Most of the time that a page takes is Plotly's start, so it waits for the first plot that is looked at.
  if (!window.Plotly) document.head.append(element("script", {}, byId("plotly").textContent));
  const { traces, layout } = drawn.get(place)();
  Plotly.react(place, traces, {
    paper_bgcolor: background(place), plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    font: { color: colour("ink"), family: "system-ui, sans-serif", size: 12 },
    margin: { l: 44, r: 16, t: 12, b: 40 }, hovermode: "closest",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...layout,
  }, SETTINGS);
}

// Of the page, so that a saved picture can be read wherever it is put.
const background = (place) => colour(place.closest(".card") ? "card" : "paper");

function saving(title, place) {
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const save = () => {
    paint(place);
    Plotly.downloadImage(place, { format: "png", filename: name, width: place.clientWidth, height: place.clientHeight, scale: 2 });
  };
  return element("button", { type: "button", class: "quiet", "aria-label": `Save as PNG: ${title}`, click: save }, "Save as PNG");
}

// All that is near the window is drawn.
function settled() {
  document.documentElement.dataset.drawn = "true";
  performance.mark("drawn");
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
window.addEventListener("beforeprint", () => {
  for (const place of drawn.keys()) if (place.isConnected) paint(place);
});
