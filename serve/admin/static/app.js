// The page: asks the admin API for the board every two seconds while the tab is visible, and shows it.

import { html, render, useEffect, useState } from "./preact-htm.js";
import { Charts } from "./charts.js";
import { ask, hasKey, setKey } from "./admin_api.js";
import { Candidates } from "./candidates.js";
import { Playground, Rows } from "./explain.js";
import { clock, moment, percent } from "./format.js";
import { Glance } from "./glance.js";
import { Pools, Timeline } from "./pools.js";
import { Errors, LookUp } from "./requests.js";
import { Reruns } from "./reruns.js";
import { Runbook } from "./runbook.js";
import { Speculation } from "./speculation.js";
import { Tenants } from "./tenants.js";

const PERIOD_MS = 2000;
const AUDIT_LINES = 20;

function useAdmin() {
  const [state, setState] = useState({ board: null, me: null, audit: [], problem: "", locked: false, at: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let me = null;
    let etag = null;
    let audited = null;
    let timer = null;
    let asking = false;
    let ended = false;
    const look = async () => {
      if (asking || ended || document.visibilityState === "hidden") return; // `visibilitychange` calls again
      clearTimeout(timer);
      asking = true;
      try {
        me ??= (await ask("/admin/v1/me")).body;
        const board = await ask("/admin/v1/board", { etag });
        if (ended) return;
        etag = board.etag;
        const news = { me, problem: "", locked: false, at: Date.now() };
        if (board.body !== null) news.board = board.body;
        if (board.audit !== audited) {
          news.audit = (await ask(`/admin/v1/audit?limit=${AUDIT_LINES}`)).body.data;
          audited = board.audit;
        }
        setState((before) => ({ ...before, ...news }));
      } catch (error) {
        if (ended) return;
        if (error.status === 401 || error.status === 403) {
          const problem = hasKey() || error.status === 403 ? error.message : "";
          setState((before) => ({ ...before, board: null, me: null, locked: true, problem }));
          return; // nothing is asked again without another key: each refusal is a line of the audit log
        }
        setState((before) => ({ ...before, problem: error.message }));
      } finally {
        asking = false;
      }
      if (!ended) timer = setTimeout(look, PERIOD_MS);
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [round]);
  return { ...state, again: () => setRound((before) => before + 1) };
}

function App() {
  const admin = useAdmin();
  const { board, me } = admin;
  const may = (scope) => me?.scopes.includes(scope) ?? false;
  return html`<header>
      <h1>specgate</h1>${board && html`<span class="soft" data-version>${board.versions.join(", ")}</span>`}
      ${board && html`<${Summary} board=${board} />`}
      <span class="soft push">${admin.at ? `as of ${clock(admin.at / 1000)}` : ""}</span>
      ${me && html`<span class="soft">${me.key}</span>`}
      ${hasKey() && html`<button type="button" onClick=${() => { setKey(""); admin.again(); }}>Forget the key</button>`}
    </header>
    <main>
      ${admin.problem && html`<p class="banner" role="alert">${admin.problem}</p>`}
      ${admin.locked && html`<${KeyForm} onKey=${admin.again} />`}
      ${board && html`<${Board} board=${board} audit=${admin.audit} may=${may} onOrder=${admin.again} />`}
      ${!board && !admin.locked && !admin.problem && html`<p class="soft">Looking …</p>`}
    </main>`;
}

function KeyForm({ onKey }) {
  const [key, change] = useState("");
  const enter = (event) => {
    event.preventDefault();
    setKey(key.trim());
    onKey();
  };
  return html`<form class="row" onSubmit=${enter}>
    <label><span>key with the scope <code>observe</code>; it stays in this tab</span>
      <input type="password" name="key" autocomplete="off" required value=${key} onInput=${(event) => change(event.target.value)} /></label>
    <button>Enter</button>
  </form>`;
}

function Summary({ board }) {
  const down = board.pools.filter((pool) => pool.state === "down").length;
  const worn = board.pools.filter((pool) => pool.state === "degraded").length;
  const silent = board.gateways.filter((gateway) => !gateway.answers).length;
  const replicas = board.gateways.length;
  const parts = [
    `${board.pools.length} ${board.pools.length === 1 ? "pool" : "pools"}`, down && `${down} down`, worn && `${worn} degraded`,
    `${replicas} gateway ${replicas === 1 ? "replica" : "replicas"}`, silent && `${silent} silent`,
  ];
  return html`<span role="status" class=${down || silent || !replicas ? "bad" : worn ? "warn" : "good"}>${parts.filter(Boolean).join(", ")}</span>`;
}

/** A section that is folded as long as it is empty, and then says so in its heading. */
function Section({ id, title, empty = "", children }) {
  return html`<details id=${id} class="section" open=${!empty}>
    <summary><h2>${title}</h2>${empty && html`<span class="soft">${empty}</span>`}</summary>
    ${children}
  </details>`;
}

function Board({ board, audit, may, onOrder }) {
  const [runbook, setRunbook] = useState("");
  const total = board.decisions.reduce((sum, each) => sum + each.requests, 0);
  const models = [...new Set(board.pools.map((pool) => pool.model))];
  const failed = board.errors.length + board.failures.length + board.unknown_models.length;
  return html`
    ${board.policy.refused_update && html`<p class="banner" role="alert">An update of the policy was refused, the old one is in force: ${board.policy.refused_update}</p>`}
    ${board.policy.digests.length > 1 && html`<p class="banner" role="alert">Gateway replicas have different policies: ${board.policy.digests.join(", ")}</p>`}
    ${board.versions.length > 1 && html`<p class="banner" role="alert">Gateway replicas have different versions: ${board.versions.join(", ")}</p>`}
    <${Glance} board=${board} onRunbook=${setRunbook} />
    <${Section} title="The last half hour"><${Charts} history=${board.history} /><//>
    <${Section} id="speculation" title="Speculation" empty=${board.pools.length ? "" : "no pools yet"}><${Speculation} pools=${board.pools} answers=${board.answers} /><//>
    <${Section} id="pools" title="Pools"><${Pools} pools=${board.pools} operates=${may("operate")} onOrder=${onOrder} /><//>
    <${Section} id="errors" title="Errors" empty=${failed ? "" : "none in half an hour"}><${Errors} board=${board} /><//>
    <${Section} id="request" title="Look a request up"><${LookUp} /><//>
    <${Section} id="quarantine" title="Quarantine" empty=${board.changes.length ? "" : "nothing was taken out of service"}><${Timeline} changes=${board.changes} /><//>
    <${Section} id="candidates" title="Candidates" empty=${board.candidates.length ? "" : "no candidates"}><${Candidates} candidates=${board.candidates} /><//>
    <${Section} id="reruns" title="Last reruns" empty=${board.reruns.length ? "" : "none"}><${Reruns} reruns=${board.reruns} kept=${board.rerun_content} reads=${may("content")} /><//>
    <${Section} id="decisions" title="Decisions of the last minute, by reason" empty=${board.decisions.length ? "" : "no requests"}>
      <${Rows} names=${["reason", "requests", "share"]}
        rows=${board.decisions.map((each) => [each.reason || "none: the first choice", each.requests, percent(total ? each.requests / total : null)])} /><//>
    <${Section} id="tenants" title="Tenants: limits and use" empty=${board.tenants.length ? "" : board.counts_usage ? "nobody used anything lately" : "usage is not counted: rate_limits.enabled, or access.mode: required"}><${Tenants} tenants=${board.tenants} /><//>
    <${Section} title="Decide a request without sending it"><${Playground} models=${models} /><//>
    <${Section} id="audit" title="Audit log" empty=${audit.length ? "" : "nothing since this admin API began"}>
      <${Rows} names=${["time", "key", "action", "object", "reason"]}
        rows=${audit.map((each) => [moment(new Date(each.time) / 1000), each.key, each.action, each.object, each.reason])} /><//>
    <${Section} id="runbook" title=${runbook ? `What to do: ${runbook}` : "What to do"} empty=${runbook ? "" : "the runbooks of all alerts"}><${Runbook} name=${runbook} />
      ${runbook && html`<button type="button" onClick=${() => setRunbook("")}>All runbooks</button>`}<//>
    <p class="soft">Policy in force: ${board.policy.digests.map((digest) => html`<code key=${digest}>${digest} </code>`)}</p>`;
}

render(html`<${App} />`, document.getElementById("app"));
