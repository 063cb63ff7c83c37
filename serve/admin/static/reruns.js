// The last reruns: their shape, and for keys with the scope `content` what was sent, one look at a time.

import { html, useState } from "./preact-htm.js";
import { useTold } from "./explain.js";
import { clock } from "./format.js";

const FEW = 6;
const NAMES = ["time", "pool", "class", "outcome", "what was wrong", "request"];

export function Reruns({ reruns, kept, reads }) {
  const [all, showAll] = useState(false);
  if (!reruns.length) return null;
  const shown = all ? reruns : reruns.slice(0, FEW);
  return html`<p class="soft">${note(kept, reads)}</p>
    <div class="wide"><table class="stacks">
      <thead><tr>${NAMES.map((name) => html`<th key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${shown.map((each) => html`<${Rerun} key=${`${each.request_id} ${each.attempt}`} rerun=${each} reads=${kept && reads} />`)}</tbody>
    </table></div>
    ${reruns.length > FEW && html`<button type="button" onClick=${() => showAll(!all)}>${all ? `Show ${FEW}` : `Show all ${reruns.length}`}</button>`}`;
}

function note(kept, reads) {
  if (!kept) return "Shapes only: texts are not kept (admin.rerun_content).";
  return reads ? "Reading a text is written to the audit log." : "Shapes only: this key lacks the scope content.";
}

function Rerun({ rerun, reads }) {
  const { told, problem, look, close } = useTold();
  const turn = () => (told ? close() : look(`/admin/v1/rerun?request_id=${encodeURIComponent(rerun.request_id)}`));
  const cells = [clock(rerun.at_s), `${rerun.model} / ${rerun.pool}`, rerun.request_class, rerun.outcome, rerun.defects.join("; ")];
  return html`<tr>
      ${cells.map((cell, index) => html`<td key=${index} data-name=${NAMES[index]}>${cell}</td>`)}
      <td data-name="request"><div><code>${rerun.request_id}</code>
        ${reads && html` <button type="button" data-read aria-expanded=${told !== null} onClick=${turn}>${told ? "Close" : "Read"}</button>`}
        ${problem && html`<span class="bad" role="alert"> ${problem}</span>`}</div></td>
    </tr>
    ${told && html`<tr><td colspan=${NAMES.length}><${Content} told=${told} /></td></tr>`}`;
}

function Content({ told }) {
  const texts = told.attempts.map((each, index) => ({
    title: `${index + 1}. ${each.pool} sent, speculation ${each.speculative ? "on" : "off"}: ${each.outcome || "not judged"}`,
    wrong: each.defects.join("; "),
    ...each,
  }));
  return html`${[...texts, { title: "The client got", ...told.client }].map((each) => html`<div key=${each.title}>
      <h3>${each.title}</h3>
      ${each.wrong && html`<p class="bad">${each.wrong}</p>`}
      ${each.missing_bytes > 0 && html`<p class="soft">${each.missing_bytes} bytes before this are not kept</p>`}
      <pre class="wide text">${each.text}</pre>
    </div>`)}`;
}
