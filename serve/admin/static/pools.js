// The pools: health, figures, and the state of quarantine by class of request, with orders for those who may give them.

import { html, useState } from "./preact-htm.js";
import { ask } from "./admin_api.js";
import { moment, number, percent, seconds } from "./format.js";
import { methodOf } from "./speculation.js";

// A shape and a word beside each colour.
const STATES = { up: "● up", degraded: "▲ degraded", down: "✕ down", asleep: "○ scaled to zero" };
const ORDER = ["down", "degraded", "up", "asleep"];
const ACTIONS = { quarantine: "Quarantine", lift: "Lift", pin: "Pin" };

export function Pools({ pools, operates, onOrder }) {
  if (!pools.length) return html`<p class="soft">No gateway replica has reported a pool yet.</p>`;
  const sorted = [...pools].sort((one, other) => urgency(one) - urgency(other));
  return html`<div class="pools">
    ${sorted.map((pool) => html`<${Pool} key=${`${pool.model}/${pool.pool}`} pool=${pool} operates=${operates} onOrder=${onOrder} />`)}
  </div>`;
}

/** Orders pools: those that need somebody come first. */
function urgency(pool) {
  if (outOf(pool) && pool.state === "up") return ORDER.indexOf("up") - 0.5;
  return ORDER.indexOf(pool.state) - (pool.waiting ? 0.25 : 0);
}

const outOf = (pool) => pool.cells.filter((cell) => cell.status === "quarantined").length;

function Pool({ pool, operates, onOrder }) {
  const out = outOf(pool);
  const accepted = Object.entries(pool.acceptance);
  return html`<article class=${`pool ${pool.state}`} data-pool=${`${pool.model}/${pool.pool}`} data-state=${pool.state}>
    <div class="title"><h3>${pool.model} / ${pool.pool}</h3><span><span class="state">${STATES[pool.state]}</span>${out > 0 && html`<span class="bad"> ✕ ${out} ${out === 1 ? "class" : "classes"} out</span>`}</span></div>
    <dl>
      <${Figure} name="engines up" value=${`${pool.engines_up} of ${pool.engines}`} />
      <${Figure} name="slots held" value=${`${pool.held} of ${pool.slots ?? "?"}`} />
      <${Figure} name="waiting" value=${pool.waiting} />
      <${Figure} name="requests a second" value=${number(pool.requests_per_s, 2)} />
      <${Figure} name="share of traffic" value=${percent(pool.traffic_share)} />
      <${Figure} name="speculation" value=${methodOf(pool)} />
      <${Figure} name="tokens a step" value=${number(pool.engine.tokens_a_step, 2)} />
      <${Figure} name="errors" value=${percent(pool.error_share)} />
      <${Figure} name="first token p50" value=${seconds(pool.ttft_p50_s)} />
      <${Figure} name="first token p95" value=${seconds(pool.ttft_p95_s)} />
      ${accepted.map(([kind, length]) => html`<${Figure} key=${kind} name=${`tokens a step, ${kind}`} value=${number(length, 2)} />`)}
    </dl>
    ${pool.cells.length > 0 &&
    html`<details open=${out > 0}>
      <summary>${pool.cells.length} ${pool.cells.length === 1 ? "class" : "classes"} of checked answers${out ? `, ${out} in quarantine` : ""}</summary>
      <ul class="cells">${pool.cells.map((cell) => html`<${Cell} key=${`${cell.request_class} ${cell.speculative}`} pool=${pool} cell=${cell} operates=${operates} onOrder=${onOrder} />`)}</ul>
    </details>`}
    ${operates && html`<details><summary>Quarantine a class of requests</summary><${Order} pool=${pool} onOrder=${onOrder} /></details>`}
  </article>`;
}

const DONE = { quarantined: "✕ taken out", open: "● back in" };

/** What quarantine did, newest first. */
export function Timeline({ changes }) {
  return html`<ol class="timeline">${changes.map((each) => html`<li key=${`${each.at_s} ${each.model} ${each.pool} ${each.request_class}`}>
    <time class="soft">${moment(each.at_s)}</time>
    <span><strong class=${each.status === "quarantined" ? "bad" : "good"}>${each.held && each.status === "open" ? "■ pinned in" : DONE[each.status]}</strong>${" "}
      ${each.model} / ${each.pool} for ${each.request_class}, speculation ${each.speculative ? "on" : "off"},
      by ${each.by === "operator" ? `operator ${each.operator}` : "the test"}: ${each.why}</span>
  </li>`)}</ol>`;
}

const Figure = ({ name, value }) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;

function Cell({ pool, cell, operates, onOrder }) {
  const [action, setAction] = useState(null);
  const state = stateOf(cell);
  const answers = cell.status === "quarantined" ? "probes" : "answers";
  return html`<li data-class=${cell.request_class}>
    <div class="title"><strong>${cell.request_class}</strong><span class=${state.tone}>${state.text}</span></div>
    <p class="soft">speculation ${cell.speculative ? "on" : "off"}; ${cell.answers ? `${percent(cell.clean_rate)} of ${cell.answers} ${answers} clean` : `no ${answers} yet`}</p>
    <${Interval} cell=${cell} />
    ${cell.why && html`<p class="soft">${cell.why}${cell.since_s ? `, since ${moment(cell.since_s)}` : ""}</p>`}
    ${operates &&
    html`<div class="row">${Object.entries(ACTIONS).map(([name, label]) => html`<button key=${name} type="button" data-action=${name} aria-expanded=${action === name} onClick=${() => setAction(action === name ? null : name)}>${label}</button>`)}</div>`}
    ${action && html`<${Order} pool=${pool} cell=${cell} action=${action} onOrder=${async () => { setAction(null); await onOrder(); }} />`}
  </li>`;
}

function stateOf(cell) {
  const by = cell.held ? " by an operator" : "";
  if (cell.status === "quarantined") return { tone: "bad", text: `✕ in quarantine${by}` };
  if (cell.held) return { tone: "warn", text: "■ pinned by an operator" };
  return cell.reference ? { tone: "soft", text: "◆ reference" } : { tone: "good", text: "● in service" };
}

/** The bounds of the clean rate, as a bar between 0 and 100 %, and in words. */
function Interval({ cell }) {
  if (!cell.answers) return null;
  const [low, high] = [1 - cell.bad_rate_at_most, 1 - cell.bad_rate_at_least];
  const words = `between ${percent(low)} and ${percent(high)}`;
  return html`<svg class="interval" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${words}>
      <title>${words}</title>
      <rect class="track" x="0" y="4" width="100" height="2" />
      <rect class="span" x=${low * 100} y="2" width=${Math.max(1, (high - low) * 100)} height="6" />
      <rect class="point" x=${Math.min(99, (cell.clean_rate ?? 0) * 100)} y="0" width="1" height="10" />
    </svg><p class="soft">true rate ${words}</p>`;
}

/** Asks for the reason, then gives the order; without a cell it asks for the class of requests too. */
function Order({ pool, cell, action = "quarantine", onOrder }) {
  const [reason, setReason] = useState("");
  const [kind, setKind] = useState(cell?.request_class ?? "tools_auto");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const give = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const body = { action, model: pool.model, pool: pool.pool, request_class: kind, reason };
      await ask("/admin/v1/quarantine", { body: { ...body, speculative: cell?.speculative ?? null } });
      setProblem("");
      setReason("");
      await onOrder();
    } catch (error) {
      setProblem(error.message);
    }
    setBusy(false);
  };
  return html`<form class="row" onSubmit=${give}>
    ${!cell && html`<label>class<input value=${kind} required onInput=${(event) => setKind(event.target.value)} /></label>`}
    <label>reason, for the next operator<input name="reason" value=${reason} required maxlength="500" onInput=${(event) => setReason(event.target.value)} /></label>
    <button disabled=${busy}>${ACTIONS[action]} ${pool.pool} for ${kind}</button>
    ${problem && html`<span class="bad" role="alert">${problem}</span>`}
  </form>`;
}
