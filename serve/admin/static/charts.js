// The last half hour as four small charts.

import { html, useEffect, useRef } from "./preact-htm.js";
import { number, seconds } from "./format.js";

const HEIGHT = 120;
const CHARTS = [
  { title: "Requests a second", lines: [["requests", "ended"], ["errors", "failed"]], text: (value) => number(value, 2) },
  { title: "Time to first token, p95", lines: [["ttft_p95_s", "p95"]], text: seconds },
  { title: "Slots held", lines: [["held", "held"]], text: (value) => number(value, 0) },
  { title: "Requests waiting", lines: [["waiting", "waiting"]], text: (value) => number(value, 0) },
];

export function Charts({ history }) {
  return html`<div class="charts">${CHARTS.map((chart) => html`<${Chart} key=${chart.title} ...${chart} history=${history} />`)}</div>`;
}

function Chart({ title, lines, text, history }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [history.at_s ?? [], ...lines.map(([name]) => history[name] ?? [])];
  const latest = lines.map(([name, label]) => `${label} ${text((history[name] ?? []).at(-1))}`).join(", ");

  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(place.current, lines, text), data, place.current);
    };
    draw();
    const themes = matchMedia("(prefers-color-scheme: dark)");
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    themes.addEventListener("change", draw);
    resized.observe(place.current);
    return () => {
      themes.removeEventListener("change", draw);
      resized.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [history]);

  return html`<div class="chart">
    <p>${title}: <span class="soft">now ${latest}</span></p>
    <div ref=${place} role="img" aria-label=${`${title} over the last half hour; now ${latest}`}></div>
  </div>`;
}

function options(place, lines, text) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: place.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [axis, { ...axis, size: 54, values: (_, values) => values.map(text) }],
    series: [
      {},
      // Lines differ by their dashes too, not by their colour alone.
      ...lines.map(([, label], index) => ({ label, width: 1.5, stroke: colour(index ? "--second" : "--series"), dash: index ? [5, 4] : [] })),
    ],
  };
}
