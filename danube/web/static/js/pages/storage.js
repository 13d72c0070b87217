// The storages of sealed history: health, contents, operations; check one.

import { get, post } from "../api.js";
import { bytes, commandLine, count, duration, plural } from "../format.js";
import { useData } from "../hooks.js";
import { html, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Button, Cli, Empty, Facts, Loaded, Meter, PageHead, ProblemBox, Tile } from "../ui.js";

export function StoragePage() {
  const state = useData((signal) => get("storages", {}, signal), [], { every: 5000 });
  return html`<div class="page"><${PageHead} title="Storage" note="Where the history of topics is kept, and what waits in the journal to get there." />
    <${Loaded} state=${state} what="The storages could not be read">${({ sealing, storages }) => html`
      <div class="tiles">
        <${Tile} label="Not sealed yet" value=${bytes(sealing.unsealed_bytes)} note=${`of ${plural(sealing.unsealed_topics, "topic")}`} />
        <${Tile} label="Oldest of it" value=${duration(sealing.oldest_age_s)} note=${`due after ${duration(sealing.max_age_s)}`} />
        <${Tile} label="Sealed since the start" value=${bytes(sealing.sealed_bytes)} note=${plural(sealing.sealed_objects, "object")} />
        <${Tile} label="Journal" value=${bytes(sealing.journal_used_bytes)}>
          <${Meter} value=${sealing.journal_used_bytes} most=${sealing.journal_limit_bytes} label="Share of the journal in use" /><p class="note">of ${bytes(sealing.journal_limit_bytes)}</p><//>
        ${sealing.stranded_topics > 0 && html`<${Tile} kind="bad" label="Stranded topics" value=${count(sealing.stranded_topics)} note=${bytes(sealing.stranded_bytes)} />`}
      </div>
      ${sealing.failing_for_s > 0 && html`<div class="problem" role="alert"><p class="title">Sealing fails for ${duration(sealing.failing_for_s)}</p><p>${sealing.last_error}</p></div>`}
      ${storages.length === 0 && html`<div class="card"><${Empty} title="No storage is configured" /></div>`}
      ${storages.map((storage) => html`<${Storage} key=${storage.storage} storage=${storage} />`)}
    `}<//></div>`;
}

const OPERATIONS = [
  { id: "name", label: "Operation", value: (row) => row.name },
  { id: "calls", label: "Calls", right: true, value: (row) => row.calls, cell: (row) => count(row.calls) },
  { id: "failures", label: "Failures", right: true, value: (row) => row.failures, cell: (row) => count(row.failures) },
  { id: "retries", label: "Retries", right: true, value: (row) => row.retries, cell: (row) => count(row.retries) },
  { id: "bytes", label: "Bytes", right: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  { id: "mean", label: "Mean time", right: true, value: (row) => (row.calls ? row.busy_s / row.calls : 0), cell: (row) => (row.calls ? duration(row.busy_s / row.calls) : "–") },
];

function Storage({ storage }) {
  const [check, setCheck] = useState({ busy: false, findings: null, error: null });
  const run = async () => {
    setCheck({ busy: true, findings: null, error: null });
    try {
      setCheck({ busy: false, error: null, findings: await post(`storages/${encodeURIComponent(storage.storage)}:check`) });
    } catch (error) {
      setCheck({ busy: false, findings: null, error });
    }
  };
  const operations = Object.entries(storage.operations).map(([name, figures]) => ({ name, ...figures }));
  const traits = [storage.durable ? "durable" : "not durable", storage.shared ? "shared" : "of this machine", storage.conditional_put && "conditional put"].filter(Boolean);
  return html`<section class="card"><header><h2>${storage.storage}</h2><${Badge} kind=${storage.healthy ? "ok" : "bad"}>${storage.healthy ? "healthy" : `failing for ${duration(storage.failing_for_s)}`}<//>
      <${Button} small disabled=${check.busy} onClick=${run}>${check.busy ? "Checking …" : "Check"}<//></header>
    <div class="body stack">
      <${Facts} rows=${[
        ["Address", html`<span class="mono">${storage.url}</span>`],
        ["Traits", traits.join(", ")],
        ["History", `${plural(storage.topics, "topic")}, ${plural(storage.parts, "part")} in ${plural(storage.objects, "object")}, ${bytes(storage.object_bytes)}`],
        ["Waits in the journal", `${bytes(storage.unsealed_bytes)}${storage.unsealed_bytes ? `, oldest ${duration(storage.oldest_unsealed_age_s)}` : ""}`],
        storage.garbage_objects > 0 && ["To be deleted", plural(storage.garbage_objects, "object")],
        ["Requests", `${count(storage.in_flight)} of at most ${count(storage.max_concurrency)} in flight, ${count(storage.waiting)} wait`],
        storage.last_error && ["Last error", html`${storage.last_error} <span class="muted">${duration(storage.last_error_age_s)} ago</span>`],
      ]} />
      ${check.findings && html`<p class="hint" role="status"><strong>${check.findings.ok ? "All history is there." : "Some history is missing or damaged."}</strong>
        ${" "}${plural(check.findings.objects, "object")}, ${bytes(check.findings.size_bytes)}; ${count(check.findings.missing)} missing, ${count(check.findings.damaged)} damaged, ${count(check.findings.orphans)} unknown.</p>`}
      <${ProblemBox} error=${check.error} what="The check failed" />
      <${Cli} line=${commandLine("danube", "storage", "check", storage.storage)} />
    </div>
    ${operations.length > 0 && html`<${Table} name=${`storage-${storage.storage}`} label="Operations" filterable=${false} rows=${operations} columns=${OPERATIONS} sort="-calls" rowKey=${(row) => row.name} />`}
  </section>`;
}
