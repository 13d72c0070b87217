// The policies of a topic: which level sets them, and what changes or resets those of the topic itself.

import { call, get, may, topicPath } from "../api.js";
import { commandLine } from "../format.js";
import { useData, useWho } from "../hooks.js";
import { html, useState } from "../lib.js";
import { POLICIES, shortName } from "../notation.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Loaded, notify } from "../ui.js";

const LEVELS = { topic: "this topic", namespace: "its namespace", broker: "the broker" };

export function PoliciesTab({ topic }) {
  const path = `${topicPath(topic)}/policies`;
  const state = useData((signal) => get(path, {}, signal), [topic]);
  const [asked, setAsked] = useState(null);
  useWho(); // what the caller may do is known a little later than the page
  const editable = may("ManageTopic");
  const columns = [
    { id: "name", label: "Policy", value: (row) => row.name, cell: (row) => html`<span class="mono">${row.name}</span>` },
    { id: "value", label: "In force", value: (row) => row.shown, cell: (row) => (row.value === null ? html`<span class="muted">not set</span>` : html`<span class="mono">${row.shown}</span>`) },
    { id: "level", label: "Set by", value: (row) => row.level, cell: (row) => row.level && html`<${Badge} kind=${row.level === "topic" ? "info" : ""}>${LEVELS[row.level] ?? row.level}<//>` },
    { id: "means", label: "Meaning", unsorted: true, value: (row) => row.means, cell: (row) => html`<span class="muted">${row.means}</span>` },
    editable && { id: "change", label: "Change", unsorted: true, right: true, value: () => "", cell: (row) => html`<span class="row-actions">
      ${row.own !== null && html`<${Button} small kind="plain" onClick=${() => setAsked({ row, reset: true })}>Reset …<span class="hidden-text"> ${row.name}</span><//>`}
      <${Button} small onClick=${() => setAsked({ row, reset: false })}>${row.own === null ? "Set …" : "Change …"}<span class="hidden-text"> ${row.name}</span><//></span>` },
  ].filter(Boolean);
  const close = () => setAsked(null);
  return html`<${Loaded} state=${state} what="The policies could not be read">${(report) => html`
    <${Table} name="policies" label="Policies" noun="policy" filterable=${false} rows=${rowsOf(report)} columns=${columns} sort="" rowKey=${(row) => row.name} />
    ${asked && (asked.reset
      ? html`<${ResetDialog} row=${asked.row} topic=${topic} path=${path} onClose=${close} onDone=${state.reload} />`
      : html`<${SetDialog} row=${asked.row} topic=${topic} path=${path} onClose=${close} onDone=${state.reload} />`)}`}<//>`;
}

function rowsOf(report) {
  const names = [...Object.keys(POLICIES), ...Object.keys(report.effective ?? {}).filter((name) => !(name in POLICIES))];
  return names.map((name) => {
    const value = report.effective?.[name] ?? null;
    const show = POLICIES[name]?.show ?? JSON.stringify;
    return { name, value, shown: value === null ? "" : show(value), own: report.own?.[name] ?? null, level: report.sources?.[name] ?? "", means: POLICIES[name]?.means ?? "" };
  });
}

function SetDialog({ row, topic, path, onClose, onDone }) {
  const policy = POLICIES[row.name] ?? { parse: JSON.parse, show: JSON.stringify, hint: "JSON" };
  const [text, setText] = useState(row.own === null ? row.shown : policy.show(row.own));
  const parsed = read(policy, text);
  const run = async () => {
    await call("PATCH", path, { body: { [row.name]: parsed.value } });
    notify(`${row.name} of ${topic} is ${text.trim()}`);
    onDone();
  };
  return html`<${Confirm} title=${`${row.name} of ${topic}`} verb="Set it" run=${run} onClose=${onClose} disabled=${parsed.value === undefined}
    cli=${commandLine("danube", "policies", "set", topic, `${shortName(row.name)}=${text.trim()}`)}>
    <label class="field"><span>Value: ${policy.hint}</span><input type="text" autofocus spellcheck=${false} autocomplete="off" value=${text}
      aria-invalid=${text.trim() !== "" && parsed.value === undefined} onInput=${(event) => setText(event.target.value)} /></label>
    ${parsed.error && html`<p class="error-text" role="status">${parsed.error}</p>`}
    <p class="muted">${row.level && row.level !== "topic" ? `Now ${LEVELS[row.level] ?? row.level} sets ${row.shown}; the topic's own value overrides that. ` : ""}A change takes effect at once, in all partitions.
      ${row.name === "retention" ? " A retention removes messages for good: the tab History tries one first." : ""}</p>
  <//>`;
}

function read(policy, text) {
  if (!text.trim()) return {};
  try {
    return { value: policy.parse(text) };
  } catch (error) {
    return { error: error.message };
  }
}

function ResetDialog({ row, topic, path, onClose, onDone }) {
  const run = async () => {
    await call("PATCH", path, { body: { [row.name]: null } });
    notify(`${topic} has no ${row.name} of its own now`);
    onDone();
  };
  return html`<${Confirm} title=${`Reset ${row.name} of ${topic}`} verb="Reset it" run=${run} onClose=${onClose} cli=${commandLine("danube", "policies", "unset", topic, shortName(row.name))}>
    <p>The topic loses its own value, <strong class="mono">${row.shown}</strong>. Then that of its namespace applies, or that of the broker, if there is one.</p>
  <//>`;
}
