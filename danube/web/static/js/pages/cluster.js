// The brokers of the cluster, the metadata that they share, and topics that wait for one of them.

import { get, may, post } from "../api.js";
import { bytes, count, duration, plural } from "../format.js";
import { useData } from "../hooks.js";
import { html, useEffect, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Button, Cli, Confirm, Facts, Loaded, notify, PageHead, ProblemBox } from "../ui.js";

const known = (value, show) => (value === undefined || value === null || value < 0 ? "–" : show(value));

const BROKERS = [
  { id: "name", label: "Broker", value: (row) => row.name, cell: (row) => html`<strong>${row.name}</strong>${row.coordinator && html` <span class="tag">coordinator</span>`}` },
  { id: "state", label: "State", value: (row) => row.state, cell: (row) => html`<${Badge} kind=${row.state === "active" ? "ok" : ["draining", "stopping"].includes(row.state) ? "warn" : "bad"}>${row.state}<//>` },
  { id: "address", label: "Address", value: (row) => row.address, cell: (row) => html`<span class="mono">${row.address}</span>` },
  { id: "rack", label: "Rack", value: (row) => row.rack },
  { id: "version", label: "Version", value: (row) => row.version },
  { id: "topics", label: "Topics", right: true, value: (row) => row.topics, cell: (row) => count(row.topics) },
  { id: "connections", label: "Connections", right: true, value: (row) => row.figures?.connections ?? -1, cell: (row) => known(row.figures?.connections, count) },
  { id: "in", label: "In /s", right: true, value: (row) => row.figures?.in_bytes_s ?? -1, cell: (row) => known(row.figures?.in_bytes_s, bytes) },
  { id: "out", label: "Out /s", right: true, value: (row) => row.figures?.out_bytes_s ?? -1, cell: (row) => known(row.figures?.out_bytes_s, bytes) },
  { id: "journal", label: "Journal", right: true, value: (row) => row.figures?.journal_used_bytes ?? -1, cell: (row) => known(row.figures?.journal_used_bytes, bytes) },
  { id: "lag", label: "Loop lag", right: true, value: (row) => row.figures?.loop_lag_s ?? -1, cell: (row) => known(row.figures?.loop_lag_s, duration) },
  { id: "uptime", label: "Up", right: true, value: (row) => row.figures?.uptime_s ?? -1, cell: (row) => known(row.figures?.uptime_s, duration) },
  { id: "moves", label: "Moves", value: (row) => row.leaving + row.arriving, cell: (row) => [row.leaving && `${count(row.leaving)} leaving`, row.arriving && `${count(row.arriving)} arriving`].filter(Boolean).join(", ") },
  { id: "problem", label: "Problem", value: (row) => row.problem },
];
const MEMBERS = [
  { id: "member", label: "Member", value: (row) => row.member, cell: (row) => html`<span class="mono">${row.member}</span>` },
  { id: "role", label: "Role", value: (row) => row.role, cell: (row) => html`<${Badge} kind=${row.role === "leader" ? "info" : ""}>${row.role}<//>` },
  { id: "broker", label: "Broker", value: (row) => (row.broker ? `b${row.broker}` : "–") },
  { id: "address", label: "Address", value: (row) => row.address },
  { id: "applied", label: "Applied", right: true, value: (row) => row.applied, cell: (row) => known(row.applied, count) },
  { id: "behind", label: "Behind", right: true, value: (row) => row.behind, cell: (row) => known(row.behind, count) },
];

function Drain({ row, onClose }) {
  const verb = row.state === "draining" ? "activate" : "drain";
  const run = async () => {
    const found = await post(`./broker:${verb}`, { broker: row.name });
    notify(`${found.name} is ${found.state} and owns ${plural(found.topics, "topic")}${found.staying ? `; ${plural(found.staying, "topic")} cannot move` : ""}`);
  };
  return html`<${Confirm} title=${`${verb === "drain" ? "Drain" : "Activate"} ${row.name}`} verb=${verb === "drain" ? "Drain" : "Activate"} run=${run} onClose=${onClose} cli=${`danube cluster ${verb} ${row.name}`}>
    <p>${verb === "drain" ? `${row.name} gives its ${plural(row.topics, "topic")} to other brokers and gets no new ones until it is activated. Clients follow their topics.` : `${row.name} gets topics again. Others come to it while it has fewer.`}</p><//>`;
}

function Balance({ onClose }) {
  const [plan, setPlan] = useState({});
  useEffect(() => {
    post("./cluster:balance", { dry_run: true }).then((found) => setPlan({ found }), (error) => setPlan({ error }));
  }, []);
  const moves = plan.found?.moves ?? [];
  const run = async () => notify(`${plural((await post("./cluster:balance", {})).ordered, "topic")} ordered to move`);
  return html`<${Confirm} title="Balance the load" verb="Move" run=${run} onClose=${onClose} disabled=${moves.length === 0} cli="danube cluster balance">
    ${plan.error ? html`<${ProblemBox} error=${plan.error} />` : !plan.found ? html`<p>The brokers are asked for their load …</p>` : html`<ul>${plan.found.brokers.map(
      (each) => html`<li>b${each.broker}: load ${Math.round(each.load * 100)} %, after ${Math.round(each.after * 100)} %, ${plural(each.topics, "topic")}</li>`,
    )}</ul><p>${moves.length ? `${plural(moves.length, "topic")} would move: ${moves.slice(0, 3).map((each) => `${each.topic} to b${each.target}`).join(", ")}${moves.length > 3 ? ", …" : ""}` : "Nothing to move: the load is even, or no topic fits."}</p>`}<//>`;
}

export function ClusterPage() {
  const state = useData((signal) => get("cluster", {}, signal), [], { every: 5000 });
  const [asked, setAsked] = useState(null);
  const close = () => {
    setAsked(null);
    state.reload();
  };
  const several = may("ManageBroker") && state.data?.brokers.filter((row) => row.session > 0).length > 1;
  const shown = (status) => BROKERS.filter((column) => (["problem", "rack"].includes(column.id) ? status.brokers.some((row) => row[column.id]) : column.id !== "moves" || status.moving > 0)).concat(several ? [
    { id: "act", label: "", value: () => "", cell: (row) => ["active", "draining"].includes(row.state) && html`<${Button} small onClick=${() => setAsked({ row })}>${row.state === "draining" ? "Activate" : "Drain"}<//>` }] : []);
  return html`<div class="page"><${PageHead} title="Cluster" note="As the broker that answers sees it.">${several && html`<${Button} onClick=${() => setAsked({})}>Balance<//>`}<//>
    ${asked && (asked.row ? html`<${Drain} row=${asked.row} onClose=${close} />` : html`<${Balance} onClose=${close} />`)}
    <${Loaded} state=${state} what="The cluster could not be read">${(status) => html`
      ${status.warnings.map((sentence) => html`<div class="problem" role="alert"><p>${sentence}</p></div>`)}
      <${Table} name="brokers" label="Brokers" noun="broker" filterable=${status.brokers.length > 8} rows=${status.brokers} columns=${shown(status)} rowKey=${(row) => row.broker} />
      ${status.waiting.length > 0 && html`<section class="card"><header><h2>Topics that wait for a broker</h2></header><div class="body"><ul>${status.waiting.map(
        (each) => html`<li>${plural(each.count, "topic")} of durability ${each.durability}: ${each.broker ? `for b${each.broker}` : "for any broker"} (${each.topics.join(", ")}${each.count > each.topics.length ? ", …" : ""})</li>`,
      )}</ul></div></section>`}
      <section class="card"><header><h2>Metadata</h2></header><div class="body"><${Facts} rows=${[
        ["Cluster", `${status.cluster} · ${status.incarnation}`],
        ["Kept by", status.metadata.kept_by || (status.metadata.engine ? `the brokers (${status.metadata.engine})` : "this broker")],
        status.metadata.term > 0 && ["Term", count(status.metadata.term)],
        status.metadata.committed > 0 && ["Committed", count(status.metadata.committed)],
        ["Feature level", status.feature_level],
        ["Topics and partitions", count(status.topics)],
      ]} /></div></section>
      ${status.metadata.members.length > 0 && html`<${Table} name="members" label="Members" noun="member" filterable=${false} rows=${status.metadata.members} columns=${MEMBERS} rowKey=${(row) => row.member} />`}
      <${Cli} line="danube cluster status" />
    `}<//></div>`;
}
