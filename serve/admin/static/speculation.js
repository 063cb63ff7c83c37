// Speculation: what each pool drafts and what comes of it, and how fast answers are with it and without.

import { html } from "./preact-htm.js";
import { Rows } from "./explain.js";
import { count, number, percent } from "./format.js";

const POOLS = ["pool", "method", "requests speculated", "tokens a step", "accepted", "draft length", "tokens a second", "KV memory", "engine"];
const CLASSES = ["model", "class of request", "tokens/s on", "tokens/s off", "on against off", "tokens measured"];

export function Speculation({ pools, answers }) {
  return html`<${Rows} names=${POOLS} rows=${pools.map(row)} />
    ${answers.length > 0 && html`<h3>Tokens a second of an answer, by class</h3>
      <${Rows} names=${CLASSES} rows=${answers.map(speed)} />
      <p class="soft">Of the last half hour, from sending the request to the end of the answer, where the engine reported the number of tokens; of one answer in eight where usage is not counted.</p>`}`;
}

/** How a pool speculates, in few words. */
export function methodOf({ facts }) {
  if (!facts.method || facts.method === "none") return "none";
  return facts.num_speculative_tokens ? `${facts.method}, ${facts.num_speculative_tokens} drafts` : facts.method;
}

/** Which engine a pool has and, if it drafts, until when its drafts are known to be right. */
export function engineOf(pool) {
  const { facts, kind } = pool;
  const engine = [facts.engine ?? kind, facts.engine_version ?? ""].join(" ").trim();
  if (methodOf(pool) === "none") return engine;
  return `${engine}, ${facts.qualified_until ? `qualified until ${facts.qualified_until}` : "not qualified"}`;
}

function row(pool) {
  const { engine } = pool;
  return [
    `${pool.model} / ${pool.pool}`, methodOf(pool), percent(engine.speculated_share), number(engine.tokens_a_step, 2),
    percent(engine.accepted_share), number(engine.draft_length, 1), number(engine.tokens_per_s, 1), percent(engine.kv_used, 0), engineOf(pool),
  ];
}

function speed(each) {
  const gain = each.on && each.off ? `${(each.on / each.off).toFixed(2)}×` : "–";
  return [each.model, each.request_class || "plain", number(each.on, 1), number(each.off, 1), gain, count((each.on_tokens ?? 0) + (each.off_tokens ?? 0))];
}
