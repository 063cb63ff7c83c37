// Eight questions of an operator, each answered in a line that leads to its section, and to its runbook.

import { html } from "./preact-htm.js";
import { count, number, percent, seconds } from "./format.js";
import { usesOf } from "./tenants.js";

const MARKS = { good: "● ", warn: "▲ ", bad: "✕ ", plain: "" }; // beside each colour
const ERRORS = { warn: 0.001, bad: 0.0144 }; // what the objective allows, and 14.4 times that, as in the alerts
const NEAR = 0.8; // of a limit
const HARDLY = 1.3; // tokens a step: drafts that cost more than they bring

export function Glance({ board, onRunbook }) {
  return html`<nav class="glance" aria-label="At a glance">${TILES.map(([name, place, runbook, answer]) => {
    const { tone = "plain", text, more } = answer(board);
    return html`<div key=${name} class="tile">
      <a href=${`#${place}`} data-question=${name} data-tone=${tone}>
        <span class="soft">${name}</span><strong class=${tone}>${MARKS[tone]}${text}</strong><span class="soft">${more}</span></a>
      ${(tone === "bad" || tone === "warn") && html`<a class="runbook" href="#runbook" onClick=${() => onRunbook(runbook)}>What to do</a>`}
    </div>`;
  })}</nav>`;
}

const TILES = [
  ["Health", "pools", "SpecgatePoolDown", health], ["Errors", "errors", "SpecgateErrorsFast", errors],
  ["Speculation", "speculation", "SpecgateAcceptanceCollapsed", speculation],
  ["Correctness", "reruns", "SpecgateQuarantined", correctness], ["Load", "pools", "SpecgatePoolFull", load],
  ["Latency", "pools", "SpecgateFirstTokenSlow", latency], ["Routing", "decisions", "SpecgateRetries", routing],
  ["Tenants", "tenants", "SpecgateTenantThrottled", tenants],
];

const named = (pool) => `${pool.model} / ${pool.pool}`;
const sum = (rows, value) => rows.reduce((total, row) => total + (value(row) ?? 0), 0);
const highest = (rows, value) => rows.reduce((best, row) => (value(row) != null && (best == null || value(row) > value(best)) ? row : best), null);
const many = (number, one, more = `${one}s`) => `${number} ${number === 1 ? one : more}`;
const listed = (parts) => parts.filter(Boolean).join(", ");

function health({ gateways, pools }) {
  const at = (state) => pools.filter((pool) => pool.state === state).length;
  const silent = gateways.filter((gateway) => !gateway.answers).length;
  const answering = gateways.length - silent;
  const more = `${many(answering, "gateway replica")}${silent ? `, ${silent} silent` : ""}`;
  if (!answering) return { tone: "bad", text: "no gateway replica answers", more };
  const wrong = listed([at("down") && `${many(at("down"), "pool")} down`, at("degraded") && `${at("degraded")} degraded`, silent && `${silent} silent`]);
  const tone = at("down") || silent ? "bad" : at("degraded") ? "warn" : "good";
  return { tone, text: wrong || many(pools.length, "pool up", "pools up"), more };
}

function errors({ pools, errors, window_s }) {
  const requests = sum(pools, (pool) => pool.requests_per_s) * window_s;
  const failed = sum(errors, (each) => (each.status >= 500 ? each.lately : 0));
  const refused = sum(errors, (each) => (each.status < 500 && each.status !== 429 ? each.lately : 0));
  const share = failed ? failed / Math.max(failed, requests) : 0;
  const most = highest(errors, (each) => each.lately || null);
  const text = listed([failed && `${percent(share)} failed`, refused && `${refused} refused`]) || "none";
  const tone = share > ERRORS.bad ? "bad" : share > ERRORS.warn || refused ? "warn" : "good";
  return { tone, text, more: most ? `mostly ${most.status} ${most.cause}, last minute` : "last minute" };
}

function speculation({ pools }) {
  const drafting = pools.filter((pool) => pool.facts.method && pool.facts.method !== "none");
  if (!drafting.length) return { text: "no pool drafts", more: "every pool has `method: none`" };
  const requests = sum(pools, (pool) => pool.requests_per_s);
  const on = sum(pools, (pool) => (pool.engine.speculated_share ?? 0) * pool.requests_per_s);
  const told = drafting.filter((pool) => pool.engine.tokens_a_step != null);
  const worst = highest(told, (pool) => -pool.engine.tokens_a_step);
  const more = worst ? `${number(worst.engine.tokens_a_step, 2)} tokens a step at ${named(worst)}${told.length > 1 ? ", the least" : ""}` : "engines have not reported drafts lately";
  const text = requests ? `${percent(on / requests)} of requests` : "no requests lately";
  return { tone: worst && worst.engine.tokens_a_step < HARDLY ? "warn" : "plain", text, more };
}

function correctness({ pools, reruns_lately }) {
  const cells = pools.flatMap((pool) => pool.cells.map((cell) => ({ ...cell, at: named(pool) })));
  const out = cells.filter((cell) => cell.status === "quarantined");
  const worst = highest(cells, (cell) => (cell.answers && cell.clean_rate != null ? 1 - cell.clean_rate : null));
  const clean = worst ? `${percent(worst.clean_rate)} clean at worst, ${worst.request_class} at ${worst.at}` : "nothing was checked yet";
  const text = listed([out.length && `${many(out.length, "class", "classes")} in quarantine`, (reruns_lately || !out.length) && `${many(reruns_lately, "rerun")} in a minute`]);
  return { tone: out.length ? "bad" : reruns_lately ? "warn" : "good", text, more: clean };
}

function load({ pools }) {
  const counted = pools.filter((pool) => pool.slots);
  const slots = sum(counted, (pool) => pool.slots);
  const waiting = sum(pools, (pool) => pool.waiting);
  const fullest = highest(counted, (pool) => pool.held / pool.slots);
  const memory = highest(pools, (pool) => pool.engine.kv_used);
  const share = slots ? `${percent(sum(counted, (pool) => pool.held) / slots, 0)} of slots held` : "slots unknown";
  const most = fullest?.held ? `, ${percent(fullest.held / fullest.slots, 0)} at ${named(fullest)}` : "";
  const kv = memory ? `; KV memory ${percent(memory.engine.kv_used, 0)} at most` : "";
  return { tone: waiting ? "warn" : "good", text: waiting ? `${count(waiting)} waiting` : "nobody waits", more: share + most + kv };
}

function latency({ pools, window_s }) {
  const slowest = highest(pools, (pool) => pool.ttft_p95_s);
  if (!slowest) return { text: "no streams lately", more: "time to first token" };
  return { text: `first token in ${seconds(slowest.ttft_p95_s)}`, more: `p95 of ${Math.round(window_s)} s at ${named(slowest)}, the slowest` };
}

function routing({ decisions }) {
  const total = sum(decisions, (each) => each.requests);
  if (!total) return { text: "no decisions lately", more: "last minute" };
  const [moved] = decisions.filter((each) => each.reason);
  const first = sum(decisions, (each) => (each.reason ? 0 : each.requests)) / total;
  const more = moved ? `most others by ${moved.reason}, ${percent(moved.requests / total)}` : "no rule changed the default choice";
  return { text: `${percent(first)} first choice`, more };
}

function tenants({ tenants, counts_usage }) {
  const [first] = tenants;
  if (!first) return counts_usage ? { text: "nobody lately", more: "last minute" } : { text: "usage is not counted", more: "rate_limits.enabled or access.mode: required would" };
  const used = tenants.map((tenant) => Math.max(0, ...usesOf(tenant).map(([value, limit]) => (limit ? value / limit : 0))));
  const over = used.filter((share) => share >= 1).length;
  const near = used.filter((share) => share > NEAR && share < 1).length;
  const text = listed([over && `${over} at a limit`, near && `${near} near one`]) || "all within limits";
  return { tone: over ? "bad" : near ? "warn" : "good", text, more: `${many(tenants.length, "tenant")}, most used by ${first.tenant}` };
}
