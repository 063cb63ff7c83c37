// The last half hour as small charts; those that nothing is known for are left out.

import { html, useEffect, useRef, useState } from "./preact-htm.js";
import { clock, count, number, percent, seconds } from "./format.js";

const HEIGHT = 110;
const SPAN_S = 1800;
const rate = (value) => (value >= 100 ? count(value) : number(value, 2));
const whole = (value) => (value == null || Number.isInteger(value) || value > 10 ? count(value) : ""); // no half requests
const minute = (at_s) => new Date(at_s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
const CHARTS = [
  { title: "Requests a second", lines: [["requests", ""], ["errors", "failed (dashed)"]], text: rate },
  { title: "Time to first token, p95", lines: [["ttft_p95_s", ""]], text: seconds },
  { title: "Requests with speculation", lines: [["speculated", ""]], text: (value) => percent(value, 0) },
  { title: "Tokens a step", lines: [["tokens_a_step", ""]], text: (value) => number(value, 2) },
  { title: "Slots held", lines: [["held", ""]], text: whole },
  { title: "Requests waiting", lines: [["waiting", ""]], text: whole },
];

export function Charts({ history }) {
  return html`<div class="charts">${CHARTS.filter((chart) => history[chart.lines[0][0]]).map((chart) => html`<${Chart} key=${chart.title} ...${chart} history=${history} />`)}</div>`;
}

function Chart({ title, lines, text, history }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = [history.at_s ?? [], ...lines.map(([name]) => history[name] ?? [])];
  const [hovered, setHovered] = useState(null);
  const at = hovered ?? (history.at_s ?? []).length - 1;
  const told = lines.map(([name, label]) => `${text((history[name] ?? [])[at])} ${label}`.trim()).join(", ");
  const latest = `${hovered == null ? "now" : clock(history.at_s[at])} ${told}`;

  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(place.current, lines, text, setHovered), data, place.current);
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
    <p>${title}: <span class="soft">${latest}</span></p>
    <div ref=${place} role="img" aria-label=${`${title} over the last half hour; ${latest}`}></div>
  </div>`;
}

function options(place, lines, text, onHover) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: place.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false } },
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
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
