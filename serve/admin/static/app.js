// The page: asks the admin API for the board every two seconds while the tab is visible, and shows it.

import { html, render, useEffect, useState } from "./preact-htm.js";
import { Charts } from "./charts.js";
import { ask, hasKey, setKey } from "./admin_api.js";
import { Playground, Rows } from "./explain.js";
import { percent } from "./format.js";
import { Glance } from "./glance.js";
import { Pools, Timeline } from "./pools.js";
import { Reruns } from "./reruns.js";
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
      <span class="soft push">${admin.at ? `as of ${new Date(admin.at).toLocaleTimeString()}` : ""}</span>
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
    <label>key with the scope <code>observe</code>; it stays in this tab
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

function Board({ board, audit, may, onOrder }) {
  const total = board.decisions.reduce((sum, each) => sum + each.requests, 0);
  const models = [...new Set(board.pools.map((pool) => pool.model))];
  return html`
    ${board.policy.refused_update && html`<p class="banner" role="alert">An update of the policy was refused, the old one is in force: ${board.policy.refused_update}</p>`}
    ${board.policy.digests.length > 1 && html`<p class="banner" role="alert">Gateway replicas have different policies: ${board.policy.digests.join(", ")}</p>`}
    <${Glance} board=${board} />
    <section><h2>The last half hour</h2><${Charts} history=${board.history} /></section>
    <section id="pools"><h2>Pools</h2><${Pools} pools=${board.pools} operates=${may("operate")} onOrder=${onOrder} /></section>
    <section id="quarantine"><h2>Quarantine: what went out and came back</h2><${Timeline} changes=${board.changes} /></section>
    <section><h2>Last reruns</h2><${Reruns} reruns=${board.reruns} kept=${board.rerun_content} reads=${may("content")} /></section>
    <section id="decisions"><h2>Decisions of the last minute, by reason</h2>
      <${Rows} names=${["reason", "requests", "share"]} empty="No request was decided in the last minute."
        rows=${board.decisions.map((each) => [each.reason || "none: the first choice", each.requests, percent(total ? each.requests / total : null)])} /></section>
    <section id="tenants"><h2>Limits and use, by tenant</h2><${Tenants} tenants=${board.tenants} /></section>
    <section><h2>Why would a request go where?</h2><${Playground} models=${models} /></section>
    <section><h2>What operators did</h2>
      <${Rows} names=${["time", "key", "action", "object", "reason"]} empty="Nothing since this admin API began."
        rows=${audit.map((each) => [new Date(each.time).toLocaleString(), each.key, each.action, each.object, each.reason])} /></section>
    <section><h2>Policy</h2><p>In force: ${board.policy.digests.map((digest) => html`<code key=${digest}>${digest} </code>`)}</p></section>`;
}

render(html`<${App} />`, document.getElementById("app"));
