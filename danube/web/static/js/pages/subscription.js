// One subscription: why it moves or does not, its place on the offset line, its consumers and its policy; and what
// moves or changes it. Deleting, seeking and skipping name the topic by its id, so they never meet a namesake.

import { call, get, rowsOf, subscriptionPath, topicPath } from "../api.js";
import { bytes, commandLine, count, duration, plural, shortCount, words } from "../format.js";
import { subscriptionHref, topicHref, useData } from "../hooks.js";
import { html, useState } from "../lib.js";
import { OffsetLine } from "../offset-line.js";
import { effectOf } from "../offsets.js";
import { baseOf, kindOf } from "../states.js";
import { refresh, subscriptionId, useFigures } from "../store.js";
import { Table } from "../table.js";
import { Badge, Button, Cli, Confirm, Empty, Facts, Loaded, notify, PageHead, Tabs, Tile } from "../ui.js";
import { DeadLettersTab, deadLettersHref } from "./dead-letters.js";
import { PolicyDialog } from "./policy.js";
import { Effect, SeekDialog } from "./seek.js";

export function SubscriptionPage({ topic, subscription, query }) {
  const path = subscriptionPath(topic, subscription);
  const load = async (signal) => {
    const [rows, explained, info] = await Promise.all([get(path, {}, signal), get(`${path}/explain`, {}, signal), get(topicPath(topic), {}, signal)]);
    return { rows: rowsOf(rows, "subscriptions"), explained, info };
  };
  const state = useData(load, [path], { every: 2000 });
  const [dialog, setDialog] = useState("");
  const tab = query.tab === "dead-letters" ? query.tab : "state";
  if (state.error?.status === 404 && state.data === undefined) {
    return html`<div class="page"><${PageHead} title=${subscription} /><div class="card"><${Empty} title="There is no such subscription" cli=${commandLine("danube", "consume", topic, "-s", subscription)}>It may have been deleted, or its topic.<//></div></div>`;
  }
  const close = () => setDialog("");
  const done = () => (state.reload(), refresh());
  return html`<div class="page"><${Loaded} state=${state} what="The subscription could not be read">${({ rows, explained, info }) => html`
    <${PageHead} title=${subscription} note=${html`${words(rows[0].type)} subscription of <a href=${topicHref(topic)}>${topic}</a>`}>
      <${Button} onClick=${() => setDialog("seek")}>Seek …<//>
      <${Button} onClick=${() => setDialog("skip")} disabled=${rows.length > 1} title=${rows.length > 1 ? "Skipping works in one partition at a time: open the partition" : undefined}>Skip …<//>
      <${Button} onClick=${() => setDialog("policy")}>Policy …<//>
      <${Button} kind="danger" icon="trash" onClick=${() => setDialog("delete")}>Delete …<//>
    <//>
    <${Tabs} label="About this subscription" current=${tab} tabs=${[
      { id: "state", label: "State", href: subscriptionHref(topic, subscription) },
      { id: "dead-letters", label: "Dead letters", href: deadLettersHref(topic, subscription) },
    ]} />
    ${tab === "dead-letters"
      ? html`<${DeadLettersTab} path=${path} topic=${topic} subscription=${subscription} />`
      : html`<${State} rows=${rows} explained=${explained} info=${info} topic=${topic} subscription=${subscription} />`}
    ${dialog === "seek" && html`<${SeekDialog} topic=${topic} subscription=${subscription} rows=${rows} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "skip" && html`<${SkipDialog} path=${path} topic=${topic} row=${rows[0]} info=${info} onClose=${close} onDone=${done} />`}
    ${dialog === "policy" && html`<${PolicyDialog} path=${path} topic=${topic} subscription=${subscription} policy=${rows[0].policy} onClose=${close} onDone=${done} />`}
    ${dialog === "delete" && html`<${DeleteDialog} path=${path} topic=${topic} subscription=${subscription} rows=${rows} info=${info} onClose=${close} />`}
  `}<//></div>`;
}

function State({ rows, explained, info, topic, subscription }) {
  return html`
    <${Explained} explained=${explained} cli=${commandLine("danube", "subscriptions", "explain", topic, subscription)} />
    <${Figures} rows=${rows} topic=${topic} subscription=${subscription} />
    ${rows.map((row) => html`<section class="card" key=${row.topic}><header><h2>Offsets${rows.length > 1 ? ` of ${row.topic}` : ""}</h2>
      <span class="muted small">${count(row.backlog_messages)} to go</span></header>
      <div class="body"><${OffsetLine} row=${row} start=${rows.length > 1 ? 0 : Number(info.start_offset)} /></div></section>`)}
    <${Consumers} rows=${rows} topic=${topic} subscription=${subscription} />
    <${Policy} row=${rows[0]} topic=${topic} subscription=${subscription} />`;
}

function Explained({ explained, cli }) {
  return html`<section class=${`card explained ${kindOf(explained.state)}`}><div class="body">
    <${Badge} kind=${kindOf(explained.state)}>${words(explained.state)}<//>
    ${explained.sentence.split("\n").map((line) => html`<p>${line}</p>`)}
    <${Cli} line=${cli} />
  </div></section>`;
}

const sum = (rows, field) => rows.reduce((total, row) => total + Number(row[field]), 0);

function Figures({ rows, topic, subscription }) {
  const figures = useFigures();
  const listed = (figures.subscriptions ?? []).find((row) => row.subscription === subscription && row.topic === topic);
  const oldest = listed?.oldest_age_s ?? 0;
  const rate = listed ? (figures.out.get(subscriptionId(listed)) ?? 0) : 0;
  return html`<div class="tiles">
    <${Tile} label="Backlog" value=${count(sum(rows, "backlog_messages"))} note=${oldest > 0 ? `oldest ${duration(oldest)}` : "nothing waits"} />
    <${Tile} label="Settled" value=${shortCount(rate)} unit="/s" note="of all messages" />
    <${Tile} label="In flight" value=${count(sum(rows, "in_flight_messages"))} note=${`${count(sum(rows, "waiting_messages"))} wait for redelivery`} />
    <${Tile} label="Delayed" value=${count(sum(rows, "delayed_messages"))} note="not due yet" />
    <${Tile} label="Poisoned" value=${count(sum(rows, "poisoned_messages"))} kind=${sum(rows, "poisoned_messages") ? "bad" : ""} note=${html`<a href=${deadLettersHref(topic, subscription)}>${count(sum(rows, "dead_lettered_messages"))} dead-lettered</a>`} />
    <${Tile} label="Redelivered" value=${count(sum(rows, "redelivered_messages"))} note="since the start" />
  </div>`;
}

function Consumers({ rows, topic, subscription }) {
  const consumers = rows.flatMap((row) => row.consumers.map((each) => ({ ...each, topic: row.topic })));
  const columns = [
    { id: "name", label: "Consumer", value: (row) => row.name, cell: (row) => html`<span class="mono">${row.name}</span>` },
    rows.length > 1 && { id: "topic", label: "Partition", value: (row) => row.topic },
    { id: "state", label: "State", value: consumerState, cell: (row) => html`<${Badge} kind=${row.suspended ? "bad" : row.active ? "ok" : ""}>${consumerState(row)}<//>` },
    { id: "flight", label: "In flight", right: true, value: (row) => row.in_flight_messages, cell: (row) => count(row.in_flight_messages) },
    { id: "credit", label: "Credit", right: true, value: (row) => row.credit_messages, cell: (row) => `${count(row.credit_messages)} · ${bytes(row.credit_bytes)}` },
    { id: "delivered", label: "Delivered", right: true, value: (row) => row.delivered_messages, cell: (row) => count(row.delivered_messages) },
    { id: "acked", label: "Acknowledged", right: true, value: (row) => row.acked_messages, cell: (row) => count(row.acked_messages) },
    consumers.some((row) => row.key_filters.length) && { id: "filters", label: "Key filters", value: (row) => row.key_filters.join(", ") },
  ].filter(Boolean);
  const empty = html`<${Empty} title="No consumer is connected" cli=${commandLine("danube", "consume", topic, "-s", subscription)} />`;
  return html`<section class="section"><h2>Consumers</h2><${Table} name="consumers" label="Consumers" noun="consumer" filterable=${consumers.length > 8} rows=${consumers} columns=${columns}
    rowKey=${(row) => `${row.topic} ${row.consumer_id}`} empty=${empty} /></section>`;
}

function consumerState(row) {
  return row.suspended ? "silent" : row.active ? "active" : "stands by";
}

function Policy({ row, topic, subscription }) {
  const policy = row.policy;
  const target = policy.dead_letter_topic || `${baseOf(topic)}-${subscription.replace(/[^\w-]/g, "-")}-dlq`;
  const poison = { block: "stays and blocks the subscription", drop: "counts as acknowledged", dead_letter: html`is copied to <a href=${topicHref(target)}>${target}</a>` };
  return html`<section class="card"><header><h2>Policy</h2></header><div class="body"><${Facts} rows=${[
    ["Ack timeout", policy.ack_timeout_s ? duration(policy.ack_timeout_s) : "none: waits indefinitely"],
    ["Redelivery", `after ${duration(policy.redelivery_delay_s)}, ${policy.backoff === "exponential" ? `doubling up to ${duration(policy.max_redelivery_delay_s)}` : "constant"}`],
    policy.max_redelivery_count < 0 ? ["Poison", "no message is: each is delivered again until it is acknowledged"] : ["Poison", html`a message that fails more than ${plural(policy.max_redelivery_count, "time")} ${poison[policy.poison]}`],
    ["Unacknowledged at most", policy.max_unacked_messages ? count(policy.max_unacked_messages) : "the broker's limit"],
    policy.dispatch_rate && ["Dispatch rate", [policy.dispatch_rate.messages_per_s && `${count(policy.dispatch_rate.messages_per_s)} messages/s`, policy.dispatch_rate.bytes_per_s && `${bytes(policy.dispatch_rate.bytes_per_s)}/s`].filter(Boolean).join(", ")],
    row.type === "key_shared" && ["Keys without a consumer", policy.unmatched],
  ]} /></div></section>`;
}

function SkipDialog({ path, topic, row, info, onClose, onDone }) {
  const [number, setNumber] = useState("1");
  const messages = Math.max(1, Number(number) || 1);
  const run = async () => {
    const answer = await call("POST", `${path}:skip`, { body: { messages }, headers: { "If-Match": `"${info.topic_id}"` } });
    notify(`${plural(messages, "message")} skipped; it continues at offset ${count(answer.position)}`);
    onDone();
  };
  const effect = effectOf(row, Number(row.floor) + messages);
  return html`<${Confirm} title=${`Skip messages of ${row.subscription}`} verb="Skip" danger run=${run} onClose=${onClose} disabled=${!(Number(row.backlog_messages) > 0)}
    cli=${commandLine("danube", "subscriptions", "seek", topic, row.subscription, effect.place)}>
    <label class="field"><span>Messages from offset ${count(row.floor)} on</span><input type="number" min="1" autofocus value=${number} onInput=${(event) => setNumber(event.target.value)} /></label>
    <${Effect} tried=${{ effects: [effect], error: null }} rows=${[row]} />
    <p class="muted">Skipped messages count as acknowledged. They stay in the topic, and a seek brings them back.</p>
  <//>`;
}

function DeleteDialog({ path, topic, subscription, rows, info, onClose }) {
  const run = async () => {
    await call("DELETE", path, { headers: { "If-Match": `"${info.topic_id}"` } });
    notify(`${subscription} is deleted`);
    await refresh();
    location.hash = "#/subscriptions";
  };
  const consumers = rows.reduce((total, row) => total + row.consumers.length, 0);
  return html`<${Confirm} title=${`Delete ${subscription}`} verb="Delete" danger typed=${subscription} run=${run} onClose=${onClose}
    cli=${commandLine("danube", "subscriptions", "delete", topic, subscription)}>
    <p>This deletes its position for good: <strong>${plural(sum(rows, "backlog_messages"), "unacknowledged message")}</strong> will not be delivered to it,
      and ${plural(consumers, "consumer")} will be disconnected. The messages stay in the topic.</p>
  <//>`;
}
