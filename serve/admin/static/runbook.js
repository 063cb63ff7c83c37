// The runbooks of the alerts, as they are in the documentation: one section, or all of them.

import { html, useEffect, useState } from "./preact-htm.js";

export function Runbook({ name }) {
  const [sections, setSections] = useState([]);
  useEffect(() => {
    fetch("/page/runbooks.md").then((response) => response.text()).then((text) => setSections(text.split(/^## /m).slice(1)));
  }, []);
  const shown = sections.filter((text) => !name || text.startsWith(`${name}\n`));
  return html`${shown.map((text) => {
    const [title, ...lines] = text.split("\n");
    return html`<article key=${title} data-runbook=${title}><h3>${title}</h3>${lines.join("\n").trim().split("\n\n").map((text) => text.replace(/\n(?!\*\*)/g, " ")).map((each) => html`<p key=${each}>${marked(each)}</p>`)}</article>`;
  })}`;
}

/** Bold and code of a paragraph; links keep their words. */
function marked(text) {
  const plain = text.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1");
  return plain.split(/(\*\*[^*]+\*\*|`[^`]+`)/).map((part) => {
    if (part.startsWith("**")) return html`<strong>${part.slice(2, -2)}</strong>`;
    return part.startsWith("`") ? html`<code>${part.slice(1, -1)}</code>` : part;
  });
}
