// All topics: filter, sort, columns, CSV; create one.

import { call } from "../api.js";
import { bytes, commandLine, count, messagesOf, shortCount, time } from "../format.js";
import { topicHref } from "../hooks.js";
import { html, useState } from "../lib.js";
import { rateOf, refresh, useFigures } from "../store.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Empty, notify, PageHead, ProblemBox } from "../ui.js";

/** The largest backlog of each topic, over its subscriptions. */
export function backlogs(subscriptions) {
  const sums = new Map();
  for (const row of subscriptions ?? []) {
    sums.set(row.topic, Math.max(sums.get(row.topic) ?? 0, row.backlog_messages));
  }
  return sums;
}

export function TopicsPage() {
  const figures = useFigures();
  const [dialog, setDialog] = useState("");
  const behind = backlogs(figures.subscriptions);
  const columns = [
    { id: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => html`<a href=${topicHref(row.topic)}>${row.topic}</a>${row.silent?.length > 0 && html` <${Badge} kind="warn">owner away<//>`}` },
    { id: "rate", label: "In /s", right: true, value: (row) => Math.round(rateOf(figures, row) * 10) / 10, cell: (row) => shortCount(rateOf(figures, row)) },
    { id: "messages", label: "Messages", right: true, value: messagesOf, cell: (row) => count(messagesOf(row)) },
    { id: "behind", label: "Largest backlog", right: true, value: (row) => behind.get(row.topic) ?? 0, cell: (row) => count(behind.get(row.topic) ?? 0) },
    { id: "stored", label: "Stored", right: true, value: (row) => row.stored_bytes, cell: (row) => bytes(row.stored_bytes) },
    { id: "partitions", label: "Partitions", right: true, value: (row) => row.partitions, cell: (row) => row.partitions || "–" },
    { id: "subscriptions", label: "Subscriptions", right: true, value: (row) => row.subscriptions.length },
    { id: "durability", label: "Durability", value: (row) => row.durability, cell: (row) => html`<span class="tag">${row.durability}</span>` },
    { id: "producers", label: "Producers", right: true, hidden: true, value: (row) => row.producers.filter((each) => each.connected).length },
    { id: "readers", label: "Readers", right: true, hidden: true, value: (row) => row.readers },
    { id: "start", label: "Start offset", right: true, hidden: true, value: (row) => Number(row.start_offset), cell: (row) => count(row.start_offset) },
    { id: "end", label: "End offset", right: true, hidden: true, value: (row) => Number(row.end_offset), cell: (row) => count(row.end_offset) },
    { id: "journal", label: "In journal", right: true, hidden: true, value: (row) => row.journal_bytes, cell: (row) => bytes(row.journal_bytes) },
    { id: "sealed", label: "In storage", right: true, hidden: true, value: (row) => row.sealed_bytes, cell: (row) => bytes(row.sealed_bytes) },
    { id: "storage", label: "Storage", hidden: true, value: (row) => row.storage || "default" },
    { id: "created", label: "Created", hidden: true, value: (row) => Number(row.created_us), cell: (row) => html`<span class="nowrap">${time(Number(row.created_us) / 1000, { millis: false })}</span>` },
  ];
  const empty = html`<${Empty} title="There are no topics yet" cli="danube topics create /default/orders">Publishing to a name creates its topic, too.<//>`;
  return html`<div class="page">
    <${PageHead} title="Topics" note="Rates are those of the last seconds.">
      <${Button} onClick=${() => setDialog("namespace")}>Create a namespace<//>
      <${Button} kind="primary" onClick=${() => setDialog("topic")}>Create a topic<//><//>
    ${figures.topics
      ? html`<${Table} name="topics" label="Topics" noun="topic" rows=${figures.topics} columns=${columns} sort="topic" rowKey=${(row) => row.topic} empty=${empty} />`
      : figures.error ? html`<${ProblemBox} error=${figures.error} retry=${refresh} />` : html`<p class="loading">Loading …</p>`}
    ${dialog === "topic" && html`<${CreateDialog} onClose=${() => setDialog("")} />`}
    ${dialog === "namespace" && html`<${NamespaceDialog} onClose=${() => setDialog("")} />`}
  </div>`;
}

function CreateDialog({ onClose }) {
  const [name, setName] = useState("/default/");
  const [partitions, setPartitions] = useState("0");
  const [durability, setDurability] = useState("");
  const topic = name.trim();
  const cli = commandLine("danube", "topics", "create", topic, partitions !== "0" && "--partitions", partitions !== "0" && partitions,
    durability && "--durability", durability);
  const run = async () => {
    await call("POST", "topics", { body: { topic, partitions: Number(partitions), ...(durability ? { durability } : {}) } });
    notify(`${topic} is created`);
    await refresh();
    location.hash = topicHref(topic);
  };
  return html`<${Confirm} title="Create a topic" verb="Create" cli=${cli} run=${run} onClose=${onClose} disabled=${!/^\/[^/]+\/[^/]+$/.test(topic)}>
    <label class="field"><span>Name: /namespace/topic</span><input type="text" autofocus spellcheck=${false} value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <div class="fields">
      <label class="field grow"><span>Partitions; 0: a plain topic</span><input type="number" min="0" value=${partitions} onInput=${(event) => setPartitions(event.target.value || "0")} /></label>
      <label class="field grow"><span>Durability, fixed for its life</span><select value=${durability} onChange=${(event) => setDurability(event.target.value)}>
        <option value="">the broker's default</option>
        <option value="disk">disk: survives a loss of power</option><option value="os">os: survives a killed broker</option>
        <option value="remote">remote: survives the loss of the machine</option><option value="none">none: in memory only</option></select></label>
    </div>
  <//>`;
}

function NamespaceDialog({ onClose }) {
  const [name, setName] = useState("");
  const namespace = name.trim().replace(/^\//, "");
  const run = async () => {
    await call("POST", "namespaces", { body: { namespace } });
    notify(`Namespace ${namespace} is created: its topics are /${namespace}/…`);
  };
  return html`<${Confirm} title="Create a namespace" verb="Create" cli=${commandLine("danube", "namespaces", "create", namespace)} run=${run} onClose=${onClose} disabled=${!namespace}>
    <label class="field"><span>Name</span><input type="text" autofocus spellcheck=${false} value=${name} onInput=${(event) => setName(event.target.value)} /></label>
  <//>`;
}
