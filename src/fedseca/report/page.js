// The start: experiments first; then of many runs the overview, and one run as it is.

function start() {
  const data = JSON.parse(byId("data").textContent);
  const unfinished = data.runs.filter((run) => !run.finished).length;
  const parts = [
    data.experiments.length > 1 && `${data.experiments.length} experiments`,
    data.runs.length && plural(data.runs.length, "run") + (unfinished ? `, ${unfinished} of them unfinished` : ""),
    data.left_out.length && element("a", { href: "#left-out" }, `${data.left_out.length} left out (see the end of the page)`),
  ].filter(Boolean);
  byId("summary").append(...parts.flatMap((part, index) => (index ? ["; ", part] : [part])));
  if (data.versions.length > 1) {
    byId("versions").textContent = `These runs were made by different versions of fedseca: ${data.versions.join(", ")}.`;
    byId("versions").hidden = false;
  }
  byId("made-by").textContent = `Made by ${data.made_by}.`;
  showCommon(data);
  if (data.experiments.length) showExperiments(data);
  if (data.runs.length > 1) showGrid(data);
  else if (data.runs.length) showRun(data.runs[0], undefined, false);
  if (data.left_out.length) {
    byId("left-out").hidden = false;
    fill(byId("left-out-table"), table([
      { label: "folder", class: "text", value: (row) => row.folder }, { label: "reason", class: "text", value: (row) => row.reason },
    ], data.left_out));
  }
  document.documentElement.dataset.ready = "true";
  performance.mark("ready");
  if (!drawn.size) settled();
}

// What sets all runs apart from the defaults; of one run its own section says it.
function showCommon({ runs }) {
  if (runs.length < 2) return;
  const inAll = runs[0].differs.filter(([path, value]) => runs.every((run) => run.differs.some((each) => each[0] === path && each[1] === value)));
  if (!inAll.length) return;
  byId("common").textContent = `All of these runs have ${inAll.map(([path, value]) => assigned(path, value)).join(", ")}, unlike the default.`;
  byId("common").hidden = false;
}

start();
