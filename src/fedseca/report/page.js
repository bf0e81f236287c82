// The start: an experiment first; then of many runs the overview, and one run as it is.

function start() {
  const data = JSON.parse(byId("data").textContent);
  const unfinished = data.runs.filter((run) => !run.finished).length;
  byId("summary").textContent = [
    data.runs.length && plural(data.runs.length, "run") + (unfinished ? `, ${unfinished} of them unfinished` : ""),
    data.left_out.length && `${data.left_out.length} left out (see the end of the page)`,
  ].filter(Boolean).join("; ");
  if (data.versions.length > 1) {
    byId("versions").textContent = `These runs were made by different versions of fedseca: ${data.versions.join(", ")}.`;
    byId("versions").hidden = false;
  }
  byId("made-by").textContent = `Made by ${data.made_by}.`;
  if (data.experiment) showExperiment(data.experiment, data);
  if (data.runs.length > 1) showGrid(data);
  else if (data.runs.length) showRun(data.runs[0], undefined, false);
  if (data.left_out.length) {
    byId("left-out").hidden = false;
    byId("left-out-table").replaceChildren(table([
      { label: "folder", class: "text", value: (row) => row.folder }, { label: "reason", class: "reason", value: (row) => row.reason },
    ], data.left_out));
  }
  document.documentElement.dataset.ready = "true";
  performance.mark("ready");
  if (!drawn.size) settled();
}

start();
