// Tenants: what each may use beside what it uses.

import { html } from "./preact-htm.js";
import { count, percent } from "./format.js";

const NAMES = ["tenant", "requests a minute", "weighted tokens a minute", "concurrency", "this month", "waiting", "refused"];

export function Tenants({ tenants }) {
  if (!tenants.length) return null;
  return html`<div class="wide"><table class="stacks">
      <thead><tr>${NAMES.map((name) => html`<th key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${tenants.map((each) => html`<${Tenant} key=${each.tenant} tenant=${each} />`)}</tbody>
    </table></div>
    <p class="soft">Use and refusals are of the last minute, the month is the calendar's in UTC.</p>`;
}

function Tenant({ tenant }) {
  const limits = tenant.limits ?? {};
  return html`<tr data-tenant=${tenant.tenant}>
    <td>${tenant.tenant}${limits.shadow ? html` <span class="soft">(limits in shadow)</span>` : ""}</td>
    ${usesOf(tenant).map(([used, limit], index) => html`<td key=${index} data-name=${NAMES[index + 1]}><div><${Use} used=${used} limit=${limit} /></div></td>`)}
    <td data-name="waiting">${tenant.waiting}${limits.queued == null ? "" : ` of ${limits.queued} for a pool`}</td>
    <td data-name="refused">${tenant.refused ?? 0}</td>
  </tr>`;
}

/** What is used of a limit: in words, and as a bar. */
function Use({ used, limit }) {
  if (limit == null) return used == null ? html`<span class="soft">no limit</span>` : html`${count(used)} <span class="soft">no limit</span>`;
  const share = used / limit;
  const tone = share >= 1 ? "bad" : share > 0.8 ? "warn" : "";
  return html`<span class=${tone}>${share >= 1 ? "✕ " : share > 0.8 ? "▲ " : ""}${count(used)} of ${count(limit)}, ${percent(share, 0)}</span>
    <meter min="0" max="1" low="0.8" high="0.99" optimum="0" value=${Math.min(1, share)} aria-hidden="true"></meter>`;
}

/** Returns what a tenant uses, and its limit, of requests and tokens a minute, requests at a time and tokens of the month. */
export function usesOf(tenant) {
  const limits = tenant.limits ?? {};
  return [
    [tenant.used_requests ?? 0, limits.requests_per_minute],
    [tenant.used_tokens ?? 0, limits.tokens_per_minute],
    [limits.concurrency == null ? null : tenant.in_use, limits.concurrency],
    [limits.tokens_per_month == null ? null : tenant.spent, limits.tokens_per_month],
  ];
}
