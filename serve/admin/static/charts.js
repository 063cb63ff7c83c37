// The last half hour as four small charts.

import { html, useEffect, useRef } from "./preact-htm.js";
import { count, number, seconds } from "./format.js";

const HEIGHT = 110;
const SPAN_S = 1800;
const rate = (value) => (value >= 100 ? count(value) : number(value, 2));
const whole = (value) => (value == null || Number.isInteger(value) || value > 10 ? count(value) : ""); // no half requests
const minute = (at_s) => new Date(at_s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
const CHARTS = [
  { title: "Requests a second", lines: [["requests", ""], ["errors", "failed (dashed)"]], text: rate },
  { title: "Time to first token, p95", lines: [["ttft_p95_s", ""]], text: seconds },
  { title: "Slots held", lines: [["held", ""]], text: whole },
  { title: "Requests waiting", lines: [["waiting", ""]], text: whole },
];

export function Charts({ history }) {
  return html`<div class="charts">${CHARTS.map((chart) => html`<${Chart} key=${chart.title} ...${chart} history=${history} />`)}</div>`;
}

function Chart({ title, lines, text, history }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [history.at_s ?? [], ...lines.map(([name]) => history[name] ?? [])];
  const latest = lines.map(([name, label]) => `${text((history[name] ?? []).at(-1))} ${label}`.trim()).join(", ");

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
    // All of the half hour, also while less of it is known.
    scales: { x: { range: (_, low, high) => [high - SPAN_S, high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, size: 24, values: (_, times) => times.map(minute) }, { ...axis, size: 54, values: (_, values) => values.map(text) }],
    series: [
      {},
      // Lines differ by their dashes too, not by their colour alone.
      ...lines.map(([, label], index) => ({ label, width: 1.5, stroke: colour(index ? "--second" : "--series"), dash: index ? [5, 4] : [] })),
    ],
  };
}
