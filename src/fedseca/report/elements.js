"use strict";
// Elements and words. Text is only ever put in as text: what stood in a file is never read as HTML.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1));
const known = (values) => values.filter((value) => value !== null && value !== undefined);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const score = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const short = (value, digits = 4) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits))));
const said = (value) => (value === null || value === undefined ? "–" : String(value));

// A setting as one would write it on the command line.
const assigned = (name, value) => `${name}=${value === null ? "none" : value}`;

// Names before numbers in their order; numbers by size.
function inOrder(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a === null || b === null) return (a === null) - (b === null);
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// Puts a table into its box. Where it is wider than that, a line above says so and its right edge fades: on a phone
// nothing else would, for a scrollbar shows itself only while one scrolls.
function fill(box, content) {
  box.replaceChildren(content);
  if (!box.hint) {
    box.hint = element("p", { class: "sideways", hidden: true }, "There is more to the right: scroll sideways →");
    box.before(box.hint);
    box.addEventListener("scroll", () => measure(box), { passive: true });
    widths.observe(box);
  }
  widths.observe(content);
}

function measure(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  box.hint.hidden = hidden <= 1;
  const goesOn = hidden - box.scrollLeft > 1;
  box.classList.toggle("goes-on", goesOn);
  box.hint.style.visibility = goesOn ? "" : "hidden"; // so that nothing moves
}

const widths = new ResizeObserver((entries) => {
  const boxes = new Set(entries.map(({ target }) => (target.hint ? target : target.parentElement)));
  for (const box of boxes) if (box && box.hint) measure(box);
});

function table(columns, rows, attributes) {
  const head = element("tr", {}, ...columns.map((c) => element("th", { scope: "col", class: c.number && "number", title: c.help }, c.label)));
  const body = rows.map((row) => element("tr", {}, ...columns.map((c) => cell(c, row))));
  return element("table", attributes, element("thead", {}, head), element("tbody", {}, ...body));
}

function cell(column, row) {
  const shown = column.show ? column.show(row) : said(column.value(row));
  return element("td", { class: column.number ? "number" : column.class }, shown);
}

// Headings are buttons: a press sorts, another turns the order.
function sortable(columns, order, onSort) {
  return element("thead", {}, element("tr", {}, ...columns.map((column, index) => {
    const sorted = order.column === index;
    const mark = sorted ? (order.down ? " ▼" : " ▲") : "";
    return element("th", { scope: "col", class: column.number && "number", "aria-sort": sorted ? (order.down ? "descending" : "ascending") : "none" },
      element("button", { type: "button", "data-sort": index, click: () => onSort(index) }, column.label + mark));
  })));
}

function download(name, content) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A spreadsheet takes a text that begins like a formula for one; an apostrophe keeps it a text.
function csv(columns, rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const lines = [columns.map((c) => quoted(c.label)), ...rows.map((row) => columns.map((c) => quoted(c.value(row))))];
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}
