// Jobs that read or write topics, such as streaming queries of Spark: what each of them reported last.

import { get } from "../api.js";
import { count, duration, shortCount } from "../format.js";
import { topicHref, useData } from "../hooks.js";
import { html } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Cli, Empty, Loaded, PageHead } from "../ui.js";

/** In one word, how a job is; and the colour of that. */
function stateOf(job) {
  if (job.missing) return ["missing", "bad"];
  return job.error ? ["had an error", "warn"] : ["reports", "ok"];
}

const COLUMNS = [
  { id: "name", label: "Job", value: (job) => job.name, cell: (job) => html`<span class="nowrap">${job.name}</span>` },
  { id: "topic", label: "Topic", value: (job) => job.topic, cell: (job) => html`<a href=${topicHref(job.topic)}>${job.topic}</a>` },
  { id: "kind", label: "Kind", value: (job) => job.kind, cell: (job) => html`<span class="tag">${job.kind}</span>` },
  { id: "state", label: "State", value: (job) => stateOf(job)[0], cell: (job) => html`<${Badge} kind=${stateOf(job)[1]}>${stateOf(job)[0]}<//>` },
  { id: "silent", label: "Last report", right: true, value: (job) => job.silent_s, cell: (job) => `${duration(job.silent_s)} ago` },
  { id: "rate", label: "Rows /s", right: true, value: (job) => job.rows_per_s, cell: (job) => shortCount(job.rows_per_s) },
  { id: "rows", label: "Rows", right: true, value: (job) => job.rows, cell: (job) => count(job.rows) },
  { id: "lag", label: "Lag", right: true, value: (job) => job.lag ?? -1, cell: (job) => count(job.lag) },
  { id: "known", label: "Known for", right: true, hidden: true, value: (job) => job.known_s, cell: (job) => duration(job.known_s) },
  { id: "error", label: "Last error", value: (job) => job.error, cell: (job) => job.error && html`<span class="cut" title=${job.error}>${job.error}</span> <span class="muted">${duration(job.error_s)} ago</span>` },
];

export function JobsPage() {
  const state = useData((signal) => get("jobs", {}, signal), [], { every: 5000 });
  const empty = html`<${Empty} title="No job has reported">Streaming queries of pyspark-danube report by themselves; other programs by client.jobs.report().<//>`;
  return html`<div class="page"><${PageHead} title="Jobs" note="Programs that read or write topics and report to this broker." />
    <${Loaded} state=${state} what="The jobs could not be read">${({ jobs }) => html`<${Table} name="jobs" label="Jobs" noun="job" rows=${jobs} columns=${COLUMNS}
      sort="name" rowKey=${(job) => `${job.name} ${job.topic}`} empty=${empty} />`}<//>
    <${Cli} line="danube jobs list" /></div>`;
}
