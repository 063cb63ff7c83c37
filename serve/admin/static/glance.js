// Six questions of an operator, each answered in a line that leads to where it is told at length.

import { html } from "./preact-htm.js";
import { count, percent, seconds } from "./format.js";
import { usesOf } from "./tenants.js";

const MARKS = { good: "● ", warn: "▲ ", bad: "✕ ", plain: "" }; // beside each colour
const ERRORS = { warn: 0.001, bad: 0.0144 }; // what the objective allows, and 14.4 times that, as in the alerts
const NEAR = 0.8; // of a limit

export function Glance({ board }) {
  return html`<nav class="glance" aria-label="At a glance">${QUESTIONS.map(([question, place, answer]) => {
    const { tone = "plain", text, more } = answer(board);
    return html`<a key=${question} href=${`#${place}`} data-question=${question} data-tone=${tone}>
      <span class="soft">${question}</span><strong class=${tone}>${MARKS[tone]}${text}</strong><span class="soft">${more}</span></a>`;
  })}</nav>`;
}

const QUESTIONS = [
  ["Well?", "pools", well], ["Full?", "pools", full], ["Fast?", "pools", fast],
  ["Right?", "quarantine", right], ["Why so?", "decisions", why], ["Who?", "tenants", who],
];

const named = (pool) => `${pool.model} / ${pool.pool}`;
const sum = (rows, value) => rows.reduce((total, row) => total + (value(row) ?? 0), 0);
const highest = (rows, value) => rows.reduce((best, row) => (value(row) != null && (best == null || value(row) > value(best)) ? row : best), null);
const many = (number, one, more = `${one}s`) => `${number} ${number === 1 ? one : more}`;
const listed = (parts) => parts.filter(Boolean).join(", ");

function well({ gateways, pools }) {
  const at = (state) => pools.filter((pool) => pool.state === state).length;
  const silent = gateways.filter((gateway) => !gateway.answers).length;
  const answering = gateways.length - silent;
  const requests = sum(pools, (pool) => pool.requests_per_s);
  const errors = requests ? sum(pools, (pool) => pool.error_share * pool.requests_per_s) / requests : null;
  const more = `${many(answering, "gateway replica")}${silent ? `, ${silent} silent` : ""}; errors ${percent(errors)}`;
  if (!answering) return { tone: "bad", text: "no gateway replica answers", more };
  const wrong = listed([at("down") && `${at("down")} down`, at("degraded") && `${at("degraded")} degraded`]);
  const bad = at("down") || silent || errors > ERRORS.bad;
  const tone = bad ? "bad" : at("degraded") || errors > ERRORS.warn ? "warn" : "good";
  return { tone, text: wrong || many(pools.length, "pool up", "pools up"), more };
}

function full({ pools }) {
  const counted = pools.filter((pool) => pool.slots);
  const slots = sum(counted, (pool) => pool.slots);
  const waiting = sum(pools, (pool) => pool.waiting);
  const fullest = highest(counted, (pool) => pool.held / pool.slots);
  const text = waiting ? `${count(waiting)} waiting` : "nobody waits";
  const share = slots ? `${percent(sum(counted, (pool) => pool.held) / slots, 0)} of slots held` : "slots unknown";
  const most = fullest?.held ? `, ${percent(fullest.held / fullest.slots, 0)} at ${named(fullest)}` : "";
  return { tone: waiting ? "warn" : "good", text, more: share + most };
}

function fast({ pools, window_s }) {
  const slowest = highest(pools, (pool) => pool.ttft_p95_s);
  if (!slowest) return { text: "no streams lately", more: "time to first token" };
  return { text: `first token in ${seconds(slowest.ttft_p95_s)}`, more: `p95 of ${Math.round(window_s)} s at ${named(slowest)}, the slowest` };
}

function right({ pools, reruns }) {
  const cells = pools.flatMap((pool) => pool.cells.map((cell) => ({ ...cell, at: named(pool) })));
  const out = cells.filter((cell) => cell.status === "quarantined");
  const worst = highest(cells, (cell) => (cell.answers && cell.clean_rate != null ? 1 - cell.clean_rate : null));
  const clean = worst ? `${percent(worst.clean_rate)} clean at worst, ${worst.request_class} at ${worst.at}` : "nothing was checked yet";
  const text = out.length ? `${many(out.length, "class", "classes")} in quarantine` : many(reruns.length, "rerun");
  return { tone: out.length ? "bad" : reruns.length ? "warn" : "good", text, more: clean };
}

function why({ decisions }) {
  const total = sum(decisions, (each) => each.requests);
  if (!total) return { text: "no decisions lately", more: "last minute" };
  const [moved] = decisions.filter((each) => each.reason);
  const first = sum(decisions, (each) => (each.reason ? 0 : each.requests)) / total;
  const more = moved ? `most else by ${moved.reason}, ${percent(moved.requests / total)}` : "no reason spoke against it";
  return { text: `${percent(first)} first choice`, more };
}

function who({ tenants }) {
  const [first] = tenants;
  if (!first) return { text: "nobody lately", more: "no tenant is counted" };
  const used = tenants.map((tenant) => Math.max(0, ...usesOf(tenant).map(([value, limit]) => (limit ? value / limit : 0))));
  const over = used.filter((share) => share >= 1).length;
  const near = used.filter((share) => share > NEAR && share < 1).length;
  const text = listed([over && `${over} at a limit`, near && `${near} near one`]) || "all within limits";
  return { tone: over ? "bad" : near ? "warn" : "good", text, more: `${many(tenants.length, "tenant")}, most used by ${first.tenant}` };
}
