// The playground: a request's body in, the decision and every reason out. No engine is asked.

import { html, useState } from "./preact-htm.js";
import { ask } from "./admin_api.js";

const TOOL = { name: "get_weather", description: "The weather in a city", schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };
const TEXT = "What is the weather in Lisbon?";
const SAMPLES = {
  chat: (model) => ({
    model,
    messages: [{ role: "user", content: TEXT }],
    tools: [{ type: "function", function: { name: TOOL.name, description: TOOL.description, parameters: TOOL.schema } }],
  }),
  messages: (model) => ({
    model,
    max_tokens: 256,
    messages: [{ role: "user", content: TEXT }],
    tools: [{ name: TOOL.name, description: TOOL.description, input_schema: TOOL.schema }],
  }),
  responses: (model) => ({ model, input: TEXT, tools: [{ type: "function", name: TOOL.name, description: TOOL.description, parameters: TOOL.schema }] }),
};

export function Playground({ models }) {
  const [api, setApi] = useState("chat");
  const [text, setText] = useState("");
  const { told, problem, look } = useTold();
  const sample = () => JSON.stringify(SAMPLES[api](models[0] ?? "MODEL"), null, 2);
  const explain = (event) => {
    event.preventDefault();
    look(`/v1/route/explain?api=${api}`, { text: text || sample() });
  };
  return html`<form onSubmit=${explain}>
      <div class="row">
        <label>API<select value=${api} onChange=${(event) => setApi(event.target.value)}>
          <option value="chat">Chat completions, completions</option><option value="messages">Messages</option><option value="responses">Responses</option>
        </select></label>
        <button type="button" onClick=${() => setText(sample())}>Sample body</button>
        <button>Explain</button>
      </div>
      <label>body of a request<textarea name="body" spellcheck="false" placeholder=${sample()} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    </form>
    <div aria-live="polite">${problem && html`<p class="bad">${problem}</p>`}${told && html`<${Decision} told=${told} />`}</div>`;
}

function Decision({ told }) {
  return html`<div data-decision><p><strong>${told.refused ? "Refused: every pool is forbidden" : `${told.model} / ${told.pool}, speculation ${told.speculative ? "on" : "off"}`}</strong>
      <span class="soft"> for ${told.classes.join(", ")}</span></p>
    <${Rows} names=${["reason", "effect", "summary", "evidence"]} empty="No rule changed the default choice."
      rows=${told.reasons.map((each) => [each.advisory, each.effect, each.summary, told.evidence?.[each.advisory] ?? ""])} />
    ${told.would_change.length > 0 &&
    html`<h3>What would change it</h3><${Rows} names=${["change", "then"]}
      rows=${told.would_change.map((each) => [each.change, `${each.pool ?? "refused"}, speculation ${each.speculative ? "on" : "off"}`])} />`}
    <details><summary>Show JSON</summary><pre class="wide">${JSON.stringify(told, null, 2)}</pre></details></div>`;
}

/** The answer of the last look at the admin API, or the problem in its place. */
export function useTold() {
  const [{ told, problem }, set] = useState({ told: null, problem: "" });
  const look = async (path, request) => {
    try {
      set({ told: (await ask(path, request)).body, problem: "" });
    } catch (error) {
      set({ told: null, problem: error.message });
    }
  };
  return { told, problem, look, close: () => set({ told: null, problem: "" }) };
}

/** A table of texts. */
export function Rows({ names, rows, empty = "" }) {
  if (!rows.length) return html`<p class="soft">${empty}</p>`;
  return html`<div class="wide"><table class=${names.length > 3 ? "stacks" : ""}>
    <thead><tr>${names.map((name) => html`<th key=${name}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${index}>${row.map((cell, column) => html`<td key=${column} data-name=${column ? names[column] : null}>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
