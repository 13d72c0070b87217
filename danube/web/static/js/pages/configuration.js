// The settings and limits of the broker, and where each is from.

import { get } from "../api.js";
import { bytes } from "../format.js";
import { useData } from "../hooks.js";
import { html, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Cli, Loaded, PageHead } from "../ui.js";

function shown(row) {
  if (row.value === null || row.value === "") return "";
  return typeof row.value === "object" ? JSON.stringify(row.value) : String(row.value);
}

const COLUMNS = [
  { id: "name", label: "Name", value: (row) => row.name, cell: (row) => html`<span class="mono">${row.name}</span>` },
  { id: "value", label: "Value", value: shown, cell: (row) => html`<span class="mono wrap">${shown(row)}</span>${/bytes$/.test(row.name) && row.value >= 1024 && html` <span class="muted">${bytes(row.value)}</span>`}` },
  { id: "source", label: "From", value: (row) => row.source, cell: (row) => html`<${Badge} kind=${row.source === "default" ? "" : "info"}>${row.source}<//>` },
];

export function ConfigurationPage() {
  const [changed, setChanged] = useState(false);
  const config = useData((signal) => get("config", {}, signal), []);
  const limits = useData((signal) => get("limits", {}, signal), []);
  const kept = (rows) => (changed ? rows.filter((row) => row.source !== "default") : rows);
  return html`<div class="page"><${PageHead} title="Configuration" note="As the broker runs now. Secrets are shown as ***.">
      <label class="check"><input type="checkbox" checked=${changed} onChange=${(event) => setChanged(event.target.checked)} />Only what differs from the default</label><//>
    <section class="section"><h2>Settings</h2><${Loaded} state=${config} what="The settings could not be read">${(answer) => html`<${Table} name="settings" label="Settings" noun="setting" rows=${kept(answer.settings)} columns=${COLUMNS} rowKey=${(row) => row.name} />`}<//></section>
    <section class="section"><h2>Limits</h2><${Loaded} state=${limits} what="The limits could not be read">${(answer) => html`<${Table} name="limits" label="Limits" noun="limit" rows=${kept(answer.limits)} columns=${COLUMNS} rowKey=${(row) => row.name} />`}<//></section>
    <${Cli} line="danube doctor" />
  </div>`;
}
