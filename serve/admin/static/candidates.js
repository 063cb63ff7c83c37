// Candidates: how pools that serve nobody answer copies of requests, and the verdict on each.

import { html } from "./preact-htm.js";
import { Rows } from "./explain.js";
import { count, percent, seconds } from "./format.js";

const VERDICTS = { promote: ["good", "● promote"], reject: ["bad", "✕ reject"], "not yet": ["soft", "○ not yet"] };
const NAMES = ["candidate", "class of request", "verdict", "pairs", "bad: its, ours, both", "worse by", "certainly between", "time: its, ours"];

export function Candidates({ candidates }) {
  return html`<${Rows} names=${NAMES} rows=${candidates.map(row)} />
    <p class="soft">Worse by: its share of bad answers less that of those served to the same requests.</p>`;
}

function row(each) {
  const [tone, text] = VERDICTS[each.verdict];
  const bad = [each.candidate_bad, each.served_bad, each.both_bad].join(", ");
  return [
    `${each.model} / ${each.pool}`, each.request_class ?? "all", html`<strong class=${tone} data-verdict=${each.verdict}>${text}</strong> ${each.why}`,
    count(each.pairs), bad, points(each.difference), `${points(each.at_least)} and ${points(each.at_most)}`,
    `${seconds(each.candidate_mean_s)}, ${seconds(each.served_mean_s)}`,
  ];
}

const points = (difference) => (difference < 0 ? `−${percent(-difference)}` : percent(difference));
