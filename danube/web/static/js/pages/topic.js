// One topic: its figures and actions, and tabs for its messages, partitions, subscriptions, producers, history, policies.

import { call, get, rowsOf, topicPath } from "../api.js";
import { bytes, commandLine, count, duration, messagesOf, plural, shortCount, time } from "../format.js";
import { topicHref, useData } from "../hooks.js";
import { html, useState } from "../lib.js";
import { rateOf, refresh, subscriptionId, useFigures } from "../store.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Empty, Facts, Loaded, notify, PageHead, Tabs } from "../ui.js";
import { MessagesTab } from "./messages.js";
import { PoliciesTab } from "./policies.js";
import { PublishDialog } from "./publish.js";
import { RetentionDialog } from "./retention.js";
import { subscriptionColumns } from "./subscriptions.js";

export function TopicPage({ topic, query }) {
  const state = useData((signal) => get(topicPath(topic), {}, signal), [topic], { every: 3000 });
  const [dialog, setDialog] = useState("");
  const tab = query.tab ?? "messages";
  if (state.error?.status === 404 && state.data === undefined) {
    return html`<div class="page"><${PageHead} title=${topic} /><div class="card"><${Empty} title="There is no such topic" cli=${commandLine("danube", "topics", "create", topic)}>It may have been deleted.<//></div></div>`;
  }
  return html`<div class="page"><${Loaded} state=${state} what="The topic could not be read">${(info) => html`
    <${TopicHead} info=${info} onDialog=${setDialog} />
    <${Tabs} label="About this topic" current=${tab} tabs=${tabsOf(topic, info)} />
    ${tab === "messages" && html`<${MessagesTab} topic=${topic} info=${info} query=${query} />`}
    ${tab === "partitions" && html`<${PartitionsTab} topic=${topic} />`}
    ${tab === "subscriptions" && html`<${SubscriptionsTab} topic=${topic} />`}
    ${tab === "producers" && html`<${ProducersTab} info=${info} />`}
    ${tab === "history" && html`<${HistoryTab} info=${info} onDone=${state.reload} />`}
    ${tab === "policies" && html`<${PoliciesTab} topic=${topic} />`}
    ${dialog === "publish" && html`<${PublishDialog} topic=${topic} onClose=${() => setDialog("")} />`}
    ${dialog === "seal" && html`<${SealDialog} topic=${topic} onClose=${() => setDialog("")} onDone=${state.reload} />`}
    ${dialog === "delete" && html`<${DeleteDialog} info=${info} onClose=${() => setDialog("")} />`}
  `}<//></div>`;
}

function tabsOf(topic, info) {
  const tabs = [
    ["messages", "Messages"],
    info.partitions > 0 && ["partitions", "Partitions", info.partitions],
    ["subscriptions", "Subscriptions", info.subscriptions.length],
    ["producers", "Producers", info.producers.filter((each) => each.connected).length],
    ["history", "History"],
    ["policies", "Policies"],
  ];
  return tabs.filter(Boolean).map(([id, label, number]) => ({ id, label, number, href: topicHref(topic, { tab: id === "messages" ? undefined : id }) }));
}

function TopicHead({ info, onDialog }) {
  const figures = useFigures();
  const listed = figures.topics?.find((row) => row.topic === info.topic);
  const rate = listed ? rateOf(figures, listed) : 0;
  const note = [
    plural(messagesOf(info), "message"), bytes(info.stored_bytes), `${shortCount(rate)}/s in`, `durability ${info.durability}`,
    info.partitions ? plural(info.partitions, "partition") : "", info.readers ? plural(info.readers, "reader") : "",
  ].filter(Boolean).join(" · ");
  return html`<${PageHead} title=${info.topic} note=${note}>
    <${Button} kind="primary" icon="send" onClick=${() => onDialog("publish")}>Publish<//>
    <${Button} onClick=${() => onDialog("seal")}>Seal …<//>
    <${Button} kind="danger" icon="trash" onClick=${() => onDialog("delete")}>Delete …<//>
  <//>`;
}

function DeleteDialog({ info, onClose }) {
  const run = async () => {
    await call("DELETE", topicPath(info.topic), { headers: { "If-Match": `"${info.topic_id}"` } });
    notify(`${info.topic} is deleted`);
    await refresh();
    location.hash = "#/topics";
  };
  return html`<${Confirm} title=${`Delete ${info.topic}`} verb="Delete" danger typed=${info.topic.split("/").pop()} run=${run} onClose=${onClose}
    cli=${commandLine("danube", "topics", "delete", info.topic)}>
    <p>This deletes <strong>${plural(messagesOf(info), "message")}</strong> (${bytes(info.stored_bytes)}) and <strong>${plural(info.subscriptions.length, "subscription")}</strong>
      for good, and disconnects its clients.</p>
  <//>`;
}

function SealDialog({ topic, onClose, onDone }) {
  const run = async () => {
    await call("POST", `${topicPath(topic)}:seal`, { body: {} });
    notify(`All messages of ${topic} are in its storage`);
    onDone();
  };
  return html`<${Confirm} title=${`Seal ${topic}`} verb="Seal" run=${run} onClose=${onClose} cli=${commandLine("danube", "topics", "seal", topic)}>
    <p>This writes all of its messages from the journal to its storage now, rather than when enough have come together. Nothing is lost or delivered again.</p>
  <//>`;
}

function PartitionsTab({ topic }) {
  const state = useData(async (signal) => rowsOf(await get(`${topicPath(topic)}/partitions`, {}, signal), "partitions"), [topic], { every: 5000 });
  const columns = [
    { id: "name", label: "Partition", value: (row) => row.topic },
    { id: "start", label: "Start", right: true, value: (row) => Number(row.start_offset), cell: (row) => count(row.start_offset) },
    { id: "sealed", label: "Sealed to", right: true, value: (row) => Number(row.sealed_offset), cell: (row) => count(row.sealed_offset) },
    { id: "end", label: "End", right: true, value: (row) => Number(row.end_offset), cell: (row) => count(row.end_offset) },
    { id: "messages", label: "Messages", right: true, value: messagesOf, cell: (row) => count(messagesOf(row)) },
    { id: "bytes", label: "Stored", right: true, value: (row) => Number(row.stored_bytes ?? 0), cell: (row) => bytes(row.stored_bytes) },
    { id: "parts", label: "Parts", right: true, value: (row) => row.parts ?? 0 },
  ];
  return html`<${Loaded} state=${state}>${(rows) => html`<${Table} name="partitions" label="Partitions" noun="partition" rows=${rows} columns=${columns} rowKey=${(row) => row.topic} />`}<//>`;
}

function SubscriptionsTab({ topic }) {
  const figures = useFigures();
  const rows = (figures.subscriptions ?? []).filter((row) => row.topic === topic);
  const empty = html`<${Empty} title="This topic has no subscriptions" cli=${commandLine("danube", "consume", topic, "-s", "my-service")}>The first consumer of a subscription creates it.<//>`;
  return html`<${Table} name="topic-subscriptions" label="Subscriptions" noun="subscription" rows=${rows} empty=${empty}
    columns=${subscriptionColumns(figures).filter((column) => column.id !== "topic")} sort="-urgency" rowKey=${subscriptionId} />`;
}

function ProducersTab({ info }) {
  const columns = [
    { id: "name", label: "Producer", value: (row) => row.name },
    { id: "state", label: "State", value: (row) => (row.connected ? "connected" : "remembered"), cell: (row) => html`<${Badge} kind=${row.connected ? "ok" : ""}>${row.connected ? "connected" : "remembered"}<//>` },
    { id: "epoch", label: "Epoch", right: true, value: (row) => Number(row.epoch), cell: (row) => count(row.epoch) },
    { id: "next", label: "Next sequence", right: true, value: (row) => Number(row.next_sequence), cell: (row) => count(row.next_sequence) },
  ];
  const empty = html`<${Empty} title="No producers" cli=${commandLine("danube", "produce", info.topic)}>None is connected, and none is remembered.<//>`;
  return html`<${Table} name="producers" label="Producers" noun="producer" rows=${info.producers} columns=${columns} sort="state" rowKey=${(row) => row.name} empty=${empty} />`;
}

function HistoryTab({ info, onDone }) {
  const [changing, setChanging] = useState(false);
  const [start, sealed, end] = [info.start_offset, info.sealed_offset, info.end_offset].map(Number);
  const share = (from, to) => (end > start ? (Math.max(0, to - from) / (end - start)) * 100 : 0);
  const { retention } = info;
  const rules = [
    retention?.max_age_s > 0 && `older than ${duration(retention.max_age_s)}`,
    retention?.max_bytes > 0 && `beyond ${bytes(retention.max_bytes)}`,
    retention?.acknowledged && "acknowledged by all subscriptions",
  ].filter(Boolean);
  return html`<section class="card"><header><h2>Where its messages are</h2><${Button} small onClick=${() => setChanging(true)}>Retention …<//></header><div class="body">
    ${changing && html`<${RetentionDialog} topic=${info.topic} retention=${retention} onClose=${() => setChanging(false)} onDone=${onDone} />`}
    ${info.partitions > 0 && html`<p class="muted small">Sums over its partitions.</p>`}
    <div class="layers" role="img" aria-label=${`${count(sealed - start)} messages in the storage, ${count(end - sealed)} in the journal`}>
      <i class="sealed" style=${{ width: `${share(start, Math.max(start, sealed))}%` }}></i><i class="journal" style=${{ width: `${share(Math.max(start, sealed), end)}%` }}></i></div>
    <ul class="legend"><li class="sealed">Storage ${info.storage || "default"}: ${plural(Math.max(0, sealed - start), "message")}, ${bytes(info.sealed_bytes)} in ${plural(info.parts, "part")} of ${plural(info.objects, "object")}</li>
      <li class="journal">Journal: ${plural(end - Math.max(start, sealed), "message")}, ${bytes(info.journal_bytes)}</li></ul>
    <${Facts} rows=${[
      ["Start", html`<span class="mono">${count(start)}</span>`],
      ["Sealed to", html`<span class="mono">${count(sealed)}</span>`],
      ["End", html`<span class="mono">${count(end)}</span>`],
      ["Retention", rules.length ? `removes messages ${rules.join("; and those ")}` : "keeps all messages"],
      ["Created", time(Number(info.created_us) / 1000, { millis: false })],
      ["Id", html`<span class="mono">${info.topic_id}</span>`],
    ]} />
  </div></section>`;
}
