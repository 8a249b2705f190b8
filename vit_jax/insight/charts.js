// The charts of a page: uPlot draws them from the JSON in #chart-data; here are the x-axis switch,
// light and dark, the width of the window, and news from `vit-jax report --serve`.
(() => {
  "use strict";
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const HEIGHT = 260, POINTS_UP_TO = 60, NEWS_EVERY = 3000;
  const holder = document.getElementById("charts");
  let data = JSON.parse(document.getElementById("chart-data").textContent);
  let charts = [];

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = () => document.querySelector('input[name="axis"]:checked').value;

  function number(value) {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size >= 1e5) {
      return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 })
        .format(value);
    }
    if (size > 0 && size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(5)));
  }

  // Runs have steps of their own: uPlot joins their tables into one.
  function table(panel) {
    const x = (series) => data.runs[series.run].x[axis()];
    const tables = panel.series.map((series) => {
      const rows = x(series).map((place, k) => [place, series.y[k]]);
      const known = rows.filter(([place, y]) => place !== null && y !== null);
      return [known.map((row) => row[0]), known.map((row) => row[1])];
    });
    return uPlot.join(tables);
  }

  function lines(panel) {
    const names = [...new Set(panel.series.map((series) => series.name))];
    return panel.series.map((series) => {
      const run = data.runs[series.run];
      const label = [data.runs.length > 1 && run.name, names.length > 1 && series.name]
        .filter(Boolean).join(" · ") || run.name;
      const points = series.y.filter((y) => y !== null).length;
      return {
        label,
        stroke: run.colour,
        width: 2,
        dash: DASHES[names.indexOf(series.name) % DASHES.length],
        spanGaps: true,
        points: { show: points <= POINTS_UP_TO, size: 6, fill: run.colour },
        value: (_, y) => number(y),
      };
    });
  }

  function draw(panel) {
    const place = document.createElement("div");
    place.className = "chart";
    place.setAttribute("role", "group");
    place.setAttribute(
      "aria-label", `${panel.title}: ${panel.label} against ${data.axes[axis()]}`);
    const title = document.createElement("h3");
    title.textContent = panel.title;
    const box = document.createElement("div");
    place.append(title, box);
    holder.append(place);
    const look = (label, size) => ({
      label,
      size,
      stroke: style("--ink-soft"),
      font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      labelSize: 22,
      grid: { stroke: style("--line"), width: 1 },
      ticks: { stroke: style("--line"), width: 1 },
      values: (_, splits) => splits.map(number),
    });
    const chart = new uPlot({
      width: Math.max(place.clientWidth - 2, 200),
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [look(data.axes[axis()], 40), look(panel.label, 58)],
      series: [{ label: data.axes[axis()], value: (_, x) => number(x) }, ...lines(panel)],
      cursor: { sync: { key: "charts" } },
    }, table(panel), box);
    for (const entry of box.querySelectorAll(".u-series th")) {  // hides a line, by keyboard too
      entry.tabIndex = 0;
      entry.setAttribute("role", "button");
      entry.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          entry.click();
        }
      });
    }
    return chart;
  }

  function drawAll() {
    charts.forEach((chart) => chart.destroy());
    holder.replaceChildren();
    charts = data.panels.map(draw);
    window.charts = charts;  // for whoever wants to look closer, and for the tests
  }

  const shape = () => JSON.stringify([
    data.axes,
    data.panels.map((panel) => [panel.title, panel.series.map((s) => [s.run, s.name])]),
  ]);

  async function news() {
    try {
      const answer = await fetch("curves.json");
      const before = shape();
      data = await answer.json();
      if (shape() === before) {
        charts.forEach((chart, k) => chart.setData(table(data.panels[k])));
      } else {
        drawAll();
      }
      tell(data.runs.map((run) => `${run.name}: ${run.state}`).join(" · "));
    } catch {
      tell("The server has stopped.");
    }
  }

  function tell(text) {
    document.getElementById("news").textContent = text;
  }

  function fit() {
    charts.forEach((chart) => {
      const width = Math.max(chart.root.closest(".chart").clientWidth - 2, 200);
      if (width !== chart.width) chart.setSize({ width, height: HEIGHT });
    });
  }

  drawAll();
  document.querySelectorAll('input[name="axis"]').forEach(
    (input) => input.addEventListener("change", drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  new ResizeObserver(fit).observe(holder);
  if (document.body.dataset.live) setInterval(news, NEWS_EVERY);
})();
