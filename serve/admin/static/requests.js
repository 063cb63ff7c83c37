// Requests that failed: by cause, the last ones, and one by its id. Never a word of their content.

import { html, useState } from "./preact-htm.js";
import { Rows, useTold } from "./explain.js";
import { clock, moment, seconds } from "./format.js";

const FEW = 6;

export function Errors({ board }) {
  const { errors, failures, unknown_models: names } = board;
  const [all, showAll] = useState(false);
  return html`
    ${errors.length > 0 && html`<${Rows} names=${["status", "cause", "model", "last minute", "half an hour"]}
      rows=${errors.map((each) => [each.status, each.cause, each.model || "–", each.lately, each.requests])} />`}
    ${names.length > 0 && html`<h3>Models that were asked for and do not exist</h3>
      <${Rows} names=${["name", "requests"]} rows=${names.map((each) => [each.name, each.requests])} />`}
    ${failures.length > 0 && html`<h3>Last failures</h3>
      <${Rows} names=${["time", "status", "cause", "model", "pool", "class", "tenant", "request"]}
        rows=${(all ? failures : failures.slice(0, FEW)).map((each) => [clock(each.at_s), each.status, each.error, each.model || "–", each.pool || "–", each.request_class || "–", each.tenant || "–", html`<code>${each.request_id}</code>`])} />
      ${failures.length > FEW && html`<button type="button" onClick=${() => showAll(!all)}>${all ? `Show ${FEW}` : `Show all ${failures.length}`}</button>`}`}`;
}

/** Looks one request up by its id. */
export function LookUp() {
  const [id, setId] = useState("");
  const { told, problem, look } = useTold();
  const submit = (event) => {
    event.preventDefault();
    look(`/admin/v1/request?request_id=${encodeURIComponent(id.trim())}`);
  };
  return html`<form class="row" onSubmit=${submit}>
      <label class="long"><span>request id (<code>x-request-id</code> of the response)</span>
        <input name="request_id" required value=${id} onInput=${(event) => setId(event.target.value)} /></label>
      <button>Look up</button>
    </form>
    <div aria-live="polite">${problem && html`<p class="bad">${problem}</p>`}${told && html`<${Found} each=${told} />`}</div>`;
}

/** Says in words where an answer ran again or went on: `standard; resumed=412; from=eagle3`. */
function repaired(rerun) {
  const [pool, tokens, from] = rerun.split(/; \w+=/);
  return pool && (tokens ? `resumed on ${pool}, behind ${tokens} tokens of ${from}` : `rerun on ${pool}`);
}

function Found({ each }) {
  const rows = [
    ["outcome", `${each.status} ${each.error || "ok"}${each.status === 499 ? ", the client left" : ""}`],
    ["ended", moment(each.at_s)], ["path", each.path], ["tenant", each.tenant], ["key", each.key], ["model", each.model],
    ["class", each.request_class || "not decided"],
    ["pool", each.pool ? `${each.pool} ${each.engine}, speculation ${each.speculative}` : "none"],
    ["attempts", [...each.faults, repaired(each.rerun)].filter(Boolean).join("; ") || "one, no fault"],
    ["reasons", each.reasons || "none"], ["waited for a slot", seconds(each.waited_s)],
    ["first token", seconds(each.first_token_s)], ["whole", seconds(each.duration_s)], ["id at engines", each.engine_id],
  ];
  return html`<dl data-found>${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value || "–"}</dd></div>`)}</dl>`;
}
