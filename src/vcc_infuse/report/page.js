"use strict";
(async () => {
  const { charts, themes } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const narrow = matchMedia("(max-width: 720px)"); // as in page.css
  const hidden = new Set();
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // The page's policy forbids style attributes, which Plotly writes; the same through the style object is allowed.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
  // Plotly also brings the style sheet of its maps, which no chart here needs.
  Object.defineProperty(HTMLStyleElement.prototype, "textContent", { set() {} });
  all(".plot").forEach((plot) => { plot.style.height = `${plot.dataset.height}px`; });

  async function decompress() {
    const compressed = atob(document.getElementById("plotly").textContent.trim());
    const bytes = Uint8Array.from(compressed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  // A chart inside a closed or hidden element has no width yet: it is drawn when that element is opened.
  const seen = (figure) => !figure.closest("details:not([open]), [hidden]");

  function draw(figure) {
    const { data, layout } = charts[figure.dataset.chart];
    for (const trace of data) if (trace.meta) trace.visible = !hidden.has(trace.meta.run);
    const look = { ...layout, template: themes[dark.matches ? "dark" : "light"] };
    if (touch.matches) look.dragmode = false; // a finger on a chart scrolls the page
    const bar = touch.matches || narrow.matches ? false : "hover"; // on a phone it would cover the legend
    const options = { responsive: true, displaylogo: false, displayModeBar: bar, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
    return Plotly.react(figure.querySelector(".plot"), data, look, options).then(listen);
  }

  // A click on a cell of a confusion matrix opens the images behind it, and closes those of other cells.
  function openCell({ points: [point] }) {
    const cell = document.getElementById(`cell-${point.data.meta.run}-${point.pointIndex.join("-")}`);
    if (!cell) return;
    const group = cell.parentNode;
    for (const other of all(".cell", group)) other.open = other === cell;
    group.open = true;
    cell.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
  }

  function listen(plot) {
    if (!plot.closest("#confusion") || plot.dataset.listens) return;
    plot.dataset.listens = "yes";
    plot.on("plotly_click", openCell);
  }

  const drawAll = (root = document) => Promise.all(all("[data-chart]", root).filter(seen).map(draw));

  function showRun(box) {
    const run = Number(box.value);
    box.checked ? hidden.delete(run) : hidden.add(run);
    for (const part of all("[data-run]")) part.hidden = hidden.has(Number(part.dataset.run));
    return drawAll();
  }

  function showAxis(name) {
    for (const { data, layout } of charts) {
      const curves = data.filter((trace) => trace.meta && trace.meta[name]);
      for (const trace of curves) trace.x = trace.meta[name];
      if (curves.length) layout.xaxis.title.text = name === "steps" ? "steps" : "training time, seconds";
    }
    return drawAll(document.getElementById("curves"));
  }

  // Numbers have thin spaces between thousands and units behind them; a dash is unknown and comes last.
  function sortBy(header) {
    const table = header.closest("table");
    const column = [...header.parentNode.children].indexOf(header);
    const down = header.getAttribute("aria-sort") !== "descending";
    const cell = (row) => row.children[column].textContent.trim();
    const number = (row) => Number.parseFloat(cell(row).replaceAll("\u202f", ""));
    const rows = [...table.tBodies[0].rows];
    const words = column === 0 || rows.every((row) => Number.isNaN(number(row)));
    const order = (a, b) => words ? cell(b).localeCompare(cell(a)) : number(b) - number(a);
    const unknown = (row) => !words && Number.isNaN(number(row));
    rows.sort((a, b) => unknown(a) - unknown(b) || (down ? order(a, b) : order(b, a)) || 0);
    for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }
  all(".classes th button").forEach((button) => button.addEventListener("click", () => sortBy(button.parentNode)));

  try {
    await decompress();
    await drawAll();
  } catch (fault) {
    const line = document.getElementById("fault");
    line.textContent = `The charts could not be drawn (${fault.message}); use a browser from 2023 or later.`;
    line.hidden = false;
    throw fault;
  }
  all(".toggles input").forEach((box) => box.addEventListener("change", () => showRun(box)));
  all(".switch input").forEach((box) => box.addEventListener("change", () => showAxis(box.value)));
  all("details").forEach((part) => part.addEventListener("toggle", () => drawAll(part)));
  dark.addEventListener("change", () => drawAll());
  narrow.addEventListener("change", () => drawAll());
  document.documentElement.dataset.ready = "yes";
})();
