// The schema registry: its subjects; one subject with its versions, settings and topics.

import { call, get, may } from "../api.js";
import { commandLine, count, inLines, plural, time } from "../format.js";
import { href, topicHref, useData, useWho } from "../hooks.js";
import { html, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Button, Cli, Confirm, Empty, Facts, Loaded, notify, PageHead } from "../ui.js";

const MOST_ROWS = 10_000;
const LEVELS = ["none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"];
const MODES = ["readwrite", "readonly"];
const pathOf = (subject) => `schemas/${encodeURIComponent(subject)}`;
const words = (name) => name.replaceAll("_", " ");

async function subjects(signal) {
  const rows = [];
  for (;;) {
    const page = await get("schemas", { after: rows.at(-1)?.subject }, signal);
    rows.push(...page.subjects);
    if (!page.more || rows.length >= MOST_ROWS) return rows;
  }
}

const COLUMNS = [
  { id: "subject", label: "Subject", value: (row) => row.subject, cell: (row) => html`<a class="mono" href=${href("schemas", row.subject)}>${row.subject}</a>` },
  { id: "type", label: "Type", value: (row) => row.schema_type, cell: (row) => html`<span class="tag">${row.schema_type}</span>` },
  { id: "version", label: "Latest", right: true, value: (row) => row.version, cell: (row) => `version ${row.version}` },
  { id: "versions", label: "Versions", right: true, value: (row) => row.versions, cell: (row) => count(row.versions) },
  { id: "level", label: "Compatibility", value: (row) => row.level, cell: (row) => words(row.level) },
  { id: "mode", label: "Mode", value: (row) => row.mode, cell: (row) => (row.mode === "readwrite" ? html`<span class="muted">read and write</span>` : html`<${Badge} kind="warn">${words(row.mode)}<//>`) },
];

export function SchemasPage() {
  const state = useData(subjects, [], { every: 10_000 });
  const empty = html`<${Empty} title="No schema is registered" cli="danube schemas register /default/orders-value order.avsc">Producers with schema= register theirs; so do Confluent's serializers.<//>`;
  return html`<div class="page"><${PageHead} title="Schemas" note="Subjects of the registry: each has versions of the schema of some messages." />
    <${Loaded} state=${state} what="The subjects could not be read">${(rows) => html`<${Table} name="schemas" label="Subjects" noun="subject" rows=${rows} columns=${COLUMNS}
      sort="subject" rowKey=${(row) => row.subject} empty=${empty} />`}<//>
    <${Cli} line="danube schemas list" /></div>`;
}

export function SubjectPage({ subject }) {
  const state = useData((signal) => get(pathOf(subject), {}, signal), [subject], { every: 10_000 });
  const [asked, setAsked] = useState("");
  const [chosen, setChosen] = useState(0);
  useWho(); // what the caller may do is known a little later than the page
  const close = () => setAsked("");
  return html`<div class="page"><${Loaded} state=${state} what="The subject could not be read">${(info) => {
    const latest = info.versions.at(-1)?.version ?? 0;
    const version = chosen || latest;
    return html`
      <${PageHead} title=${subject} note=${`${plural(info.versions.length, "version")} · ${words(info.effective.level)} · ${words(info.effective.mode)}`}>
        ${may("ManageSchema") && html`<${Button} onClick=${() => setAsked("settings")}>Settings …<//>
          <${Button} kind="danger" icon="trash" onClick=${() => setAsked("all")}>Delete …<//>`}<//>
      <section class="card" aria-label="Settings"><div class="body"><${Facts} rows=${[
        ["Compatibility", setting(info, "level")],
        ["Rules for JSON", setting(info, "json_policy")],
        ["Mode", setting(info, "mode")],
        ["Topics", info.topics.length ? info.topics.map((topic) => html`<a href=${topicHref(topic)}>${topic}</a> `) : html`<span class="muted">none is bound to it</span>`],
      ]} /></div></section>
      <${Table} name="versions" label="Versions" noun="version" filterable=${false} rows=${info.versions} columns=${versionColumns(version, setChosen, setAsked)} sort="-version" rowKey=${(row) => row.version} />
      ${version > 0 && html`<${Text} key=${version} subject=${subject} version=${version} />`}
      <${Cli} line=${version > 1 ? commandLine("danube", "schemas", "diff", subject, String(version - 1), String(version)) : commandLine("danube", "schemas", "show", subject)} />
      ${asked === "settings" && html`<${SettingsDialog} info=${info} onClose=${close} onDone=${state.reload} />`}
      ${asked && asked !== "settings" && html`<${DeleteDialog} subject=${subject} version=${asked === "all" ? 0 : asked} onClose=${close} onDone=${() => {
        setChosen(0);
        state.reload();
      }} />`}`;
  }}<//></div>`;
}

/** A setting in effect, and whether it is the subject's own. */
function setting(info, name) {
  return html`${words(info.effective[name])} <span class="muted">${info.own[name] ? "of its own" : "as everywhere"}</span>`;
}

function versionColumns(current, onShow, onDelete) {
  return [
    { id: "version", label: "Version", value: (row) => row.version, cell: (row) => (row.version === current ? html`<strong>${row.version}</strong>` : row.version) },
    { id: "number", label: "Id", right: true, value: (row) => row.number },
    { id: "created", label: "Registered", value: (row) => row.created_ms, cell: (row) => html`<span class="nowrap" title=${row.created_by}>${row.created_ms ? time(row.created_ms, { millis: false }).slice(0, 16) : "–"}</span>` },
    { id: "description", label: "Description", value: (row) => [row.description, ...row.tags].filter(Boolean).join(" · ") },
    { id: "do", label: "Do", unsorted: true, right: true, value: () => "", cell: (row) => html`<span class="row-actions">
      <${Button} small onClick=${() => onShow(row.version)}>Show<span class="hidden-text"> version ${row.version}</span><//>
      ${may("ManageSchema") && html`<${Button} small kind="danger" onClick=${() => onDelete(row.version)}>Delete …<span class="hidden-text"> version ${row.version}</span><//>`}</span>` },
  ];
}

function Text({ subject, version }) {
  const state = useData((signal) => get(`${pathOf(subject)}/versions/${version}`, { deleted: true }, signal), [subject, version]);
  return html`<section class="card" aria-label="Schema"><header><h2>Version ${version}</h2></header><div class="body">
    <${Loaded} state=${state} what="The schema could not be read">${(info) => html`
      <p class="muted">id ${info.number} · ${info.schema_type}${info.name && html` · <span class="mono">${info.name}</span>`}${info.references.map((each) => html` · refers to <a href=${href("schemas", each.subject)}>${each.subject}</a> version ${each.version}`)}</p>
      <pre class="sample" tabindex="0">${inLines(info.text) || "values of this type need no text"}</pre>`}<//></div></section>`;
}


function SettingsDialog({ info, onClose, onDone }) {
  const [level, setLevel] = useState(info.own.level);
  const [mode, setMode] = useState(info.own.mode);
  const changes = { ...(level !== info.own.level && { level }), ...(mode !== info.own.mode && { mode }) };
  const run = async () => {
    await call("PATCH", pathOf(info.subject), { body: changes });
    notify(`The settings of ${info.subject} are changed`);
    onDone();
  };
  const line = changes.mode === undefined || changes.level !== undefined
    ? commandLine("danube", "schemas", "compatibility", info.subject, level ? level.replaceAll("_", "-") : "--unset")
    : commandLine("danube", "schemas", "mode", info.subject, mode ? mode.replace("read", "read-") : "--unset");
  const choices = (names) => [html`<option value="">as everywhere</option>`, ...names.map((name) => html`<option value=${name}>${words(name)}</option>`)];
  return html`<${Confirm} title=${`Settings of ${info.subject}`} verb="Change them" run=${run} onClose=${onClose} disabled=${!Object.keys(changes).length} cli=${line}>
    <label class="field"><span>Compatibility</span><select value=${level} onChange=${(event) => setLevel(event.target.value)}>${choices(LEVELS)}</select></label>
    <label class="field"><span>Mode</span><select value=${mode} onChange=${(event) => setMode(event.target.value)}>${choices(MODES)}</select></label>
    <p class="muted">A level counts for the next version; versions that exist are not compared again.</p>
  <//>`;
}

function DeleteDialog({ subject, version, onClose, onDone }) {
  const what = version ? `version ${version} of ${subject}` : subject;
  const run = async () => {
    await call("DELETE", version ? `${pathOf(subject)}/versions/${version}` : pathOf(subject));
    notify(`${what} is deleted`);
    if (!version) location.hash = href("schemas");
    else onDone();
  };
  return html`<${Confirm} title=${`Delete ${what}`} verb="Delete it" danger run=${run} onClose=${onClose}
    cli=${commandLine("danube", "schemas", "delete", version ? `${subject}@${version}` : subject)}>
    <p>Nothing new can use ${version ? "this version" : "its versions"}. Messages that were written with ${version ? "it" : "them"} are still decoded: the schemas stay, and are found by their ids.</p>
  <//>`;
}
