// Access control: who there is, what they may do, and with which credentials. No secret is known here, so none is shown.

import { call, get } from "../api.js";
import { bytes, commandLine, count, duration, plural, time } from "../format.js";
import { href, useData, useWho } from "../hooks.js";
import { html, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Dialog, Empty, Facts, Loaded, notify, PageHead, Tabs } from "../ui.js";

const MOST_ROWS = 10_000;

/** All rows of a list of access control, page by page. */
async function rowsOf(path, name, key, signal) {
  const rows = [];
  for (;;) {
    const page = await get(`security/${path}`, { after: rows.length ? key(rows.at(-1)) : undefined }, signal);
    rows.push(...page[name]);
    if (!page.more || rows.length >= MOST_ROWS) return rows;
  }
}

const id = (row) => row.id;
const TABS = [
  { id: "principals", label: "Principals", load: (signal) => rowsOf("principals", "principals", (row) => row.subject, signal) },
  { id: "bindings", label: "Bindings", load: (signal) => rowsOf("bindings", "bindings", id, signal) },
  { id: "roles", label: "Roles", load: (signal) => rowsOf("roles", "roles", id, signal) },
  { id: "keys", label: "API keys", load: (signal) => rowsOf("keys", "keys", id, signal) },
  { id: "issuers", label: "Signing keys", load: (signal) => rowsOf("issuers", "issuers", id, signal) },
  { id: "revoked", label: "Revoked tokens", load: (signal) => rowsOf("revoked-tokens", "tokens", id, signal) },
];

export function SecurityPage({ query }) {
  const who = useWho();
  const tab = TABS.find((each) => each.id === query.tab) ?? TABS[0];
  const note = !who ? "" : who.secured
    ? html`You are <strong>${who.subject}</strong>, proven by ${who.proof}${who.expires_us ? `, until ${time(who.expires_us / 1000, { millis: false })}` : ""}`
    : "Access control is off: this prepares it";
  return html`<div class="page">
    <${PageHead} title="Security" note=${note} />
    <${Tabs} label="Parts of access control" current=${tab.id} tabs=${TABS.map((each) => ({ ...each, href: href("security", { tab: each === TABS[0] ? undefined : each.id }) }))} />
    <${Part} key=${tab.id} tab=${tab} />
  </div>`;
}

/** One list, and the questions before its changes. */
function Part({ tab }) {
  const state = useData(tab.load, [], { every: 10_000 });
  const [asked, setAsked] = useState(null);
  const close = () => setAsked(null);
  return html`<${Loaded} state=${state} what="The list could not be read">${(rows) => html`<${TABLES[tab.id]} rows=${rows} onAsk=${setAsked} />`}<//>
    ${asked?.kind === "quota" && html`<${QuotaDialog} subject=${asked.subject} onClose=${close} />`}
    ${asked && asked.kind !== "quota" && html`<${ChangeDialog} key=${asked.kind} asked=${asked} onClose=${close} onDone=${state.reload} />`}`;
}

const made = (row) => html`<span class="line" title=${time(row.created_us / 1000)}>${row.created_us ? time(row.created_us / 1000, { millis: false }).slice(0, 16) : "–"}</span>`;
const scopes = (ceiling) => (ceiling === null ? "what its principal may do" : ceiling.map((each) => `${each.permissions.join(", ")} on ${each.scope}`).join("; "));
const CREATED = { id: "created", label: "Made", value: (row) => row.created_us, cell: made };
const BY = { id: "by", label: "By", value: (row) => row.created_by, hidden: true };

function expiry(us) {
  if (!us) return html`<span class="muted">never</span>`;
  const left = us / 1e6 - Date.now() / 1000;
  return html`<span class="line" title=${time(us / 1000)}>${left > 0 ? `in ${duration(left)}` : html`<${Badge} kind="warn">expired<//>`}</span>`;
}

function Principals({ rows, onAsk }) {
  const columns = [
    { id: "subject", label: "Principal", value: (row) => row.subject, cell: (row) => html`<span class="mono">${row.subject}</span>` },
    { id: "state", label: "State", value: (row) => (row.suspended ? "suspended" : "active"), cell: (row) => html`<${Badge} kind=${row.suspended ? "bad" : "ok"}>${row.suspended ? "suspended" : "active"}<//>
      ${row.suspended && row.description && html` <span class="muted">${row.description}</span>`}` },
    { id: "bindings", label: "Bindings", right: true, value: (row) => row.bindings, cell: (row) => count(row.bindings) },
    { id: "keys", label: "API keys", right: true, value: (row) => row.keys, cell: (row) => count(row.keys) },
    { id: "change", label: "Change", unsorted: true, right: true, value: () => "", cell: (row) => html`<span class="row-actions">
      ${!row.subject.startsWith("group:") && html`<${Button} small kind="plain" onClick=${() => onAsk({ kind: "quota", subject: row.subject })}>Quota<span class="hidden-text"> of ${row.subject}</span><//>`}
      <${Button} small kind=${row.suspended ? "" : "danger"} onClick=${() => onAsk({ kind: row.suspended ? "resume" : "suspend", subject: row.subject })}>${row.suspended ? "Resume …" : "Suspend …"}<span class="hidden-text"> ${row.subject}</span><//></span>` },
  ];
  return html`<${Table} name="principals" label="Principals" noun="principal" rows=${rows} columns=${columns} rowKey=${(row) => row.subject} sort="subject" />`;
}

function Bindings({ rows, onAsk }) {
  const columns = [
    { id: "subject", label: "Subject", value: (row) => row.subject, cell: (row) => html`<span class="mono">${row.subject}</span>` },
    { id: "roles", label: "Roles", value: (row) => row.roles.join(", "), cell: (row) => row.roles.map((role) => html`<span class="tag">${role}</span> `) },
    { id: "scope", label: "Within", value: (row) => row.scope, cell: (row) => html`<span class="mono">${row.scope}</span>` },
    { id: "id", label: "Id", value: id, cell: (row) => html`<span class="mono small">${row.id}</span>` },
    CREATED, BY,
    { id: "change", label: "Change", unsorted: true, right: true, value: () => "", cell: (row) => html`<${Button} small kind="danger" onClick=${() => onAsk({ kind: "binding", row })}>Remove …<span class="hidden-text"> ${row.id}</span><//>` },
  ];
  const empty = html`<${Empty} title="There are no bindings" cli="danube grant producer to service:NAME on /namespace/topic" />`;
  return html`<${Table} name="bindings" label="Bindings" noun="binding" rows=${rows} columns=${columns} rowKey=${id} sort="subject" empty=${empty} />`;
}

function Roles({ rows }) {
  const columns = [
    { id: "name", label: "Role", value: (row) => row.name, cell: (row) => html`<strong>${row.name}</strong> ${row.built_in && html`<span class="tag">built in</span>`}` },
    { id: "permissions", label: "Permissions", value: (row) => row.permissions.join(", "), cell: (row) => html`<span class="tags">${row.permissions.map((each) => html`<span class="tag">${each}</span>`)}</span>` },
    { id: "description", label: "Description", value: (row) => row.description },
  ];
  return html`<${Table} name="roles" label="Roles" noun="role" rows=${rows} columns=${columns} rowKey=${(row) => row.name} sort="name" />`;
}

function Keys({ rows, onAsk }) {
  const columns = [
    { id: "id", label: "Key", value: id, cell: (row) => html`<span class="mono">${row.id}</span>` },
    { id: "subject", label: "Of", value: (row) => row.subject, cell: (row) => html`<span class="mono">${row.subject}</span>` },
    { id: "description", label: "Description", value: (row) => row.description },
    { id: "ceiling", label: "At most", value: (row) => scopes(row.ceiling), cell: (row) => html`<span class=${row.ceiling ? "" : "muted"}>${scopes(row.ceiling)}</span>` },
    { id: "expires", label: "Expires", value: (row) => row.expires_us || Infinity, cell: (row) => expiry(row.expires_us) },
    CREATED, BY,
    { id: "change", label: "Change", unsorted: true, right: true, value: () => "", cell: (row) => html`<${Button} small kind="danger" onClick=${() => onAsk({ kind: "key", row })}>Delete …<span class="hidden-text"> ${row.id}</span><//>` },
  ];
  const empty = html`<${Empty} title="There are no API keys" cli="danube keys create service:NAME">A key is shown once, when it is made; the broker keeps its hash.<//>`;
  return html`<${Table} name="keys" label="Keys" noun="key" rows=${rows} columns=${columns} rowKey=${id} sort="subject" empty=${empty} />`;
}

function Issuers({ rows }) {
  const columns = [
    { id: "name", label: "Issuer", value: (row) => row.name, cell: (row) => html`<strong>${row.name}</strong>` },
    { id: "kid", label: "Key", value: (row) => row.kid, cell: (row) => html`<span class="mono small">${row.kid}</span>` },
    { id: "description", label: "Description", value: (row) => row.description },
    { id: "ceiling", label: "Its tokens may at most", value: (row) => scopes(row.ceiling), cell: (row) => html`<span class=${row.ceiling ? "" : "muted"}>${scopes(row.ceiling)}</span>` },
    { id: "life", label: "Longest life", right: true, value: (row) => row.longest_life_s, cell: (row) => duration(row.longest_life_s) },
    CREATED, BY,
  ];
  return html`<${Table} name="issuers" label="Signing keys" noun="key" rows=${rows} columns=${columns} rowKey=${(row) => row.kid} sort="name" />`;
}

function Revoked({ rows, onAsk }) {
  const columns = [
    { id: "id", label: "Token", value: id, cell: (row) => html`<span class="mono">${row.id}</span>` },
    { id: "reason", label: "Reason", value: (row) => row.reason },
    { id: "expires", label: "Would expire", value: (row) => row.expires_us, cell: (row) => expiry(row.expires_us) },
    CREATED, { ...BY, hidden: false },
  ];
  const empty = html`<${Empty} title="No token is revoked">A token is revoked by its id, which it was made with; the audit log names it, too.<//>`;
  return html`<${Table} name="revoked" label="Revoked tokens" noun="token" rows=${rows} columns=${columns} rowKey=${id} sort="-created" empty=${empty}>
    <${Button} small kind="danger" onClick=${() => onAsk({ kind: "token" })}>Revoke a token …<//><//>`;
}

const TABLES = { principals: Principals, bindings: Bindings, roles: Roles, keys: Keys, issuers: Issuers, revoked: Revoked };

function QuotaDialog({ subject, onClose }) {
  const state = useData((signal) => get(`security/principals/${encodeURIComponent(subject)}/quota`, {}, signal), [subject]);
  const rate = (value) => (value ? `${bytes(value)}/s` : "no quota");
  return html`<${Dialog} title=${`Quota of ${subject}`} onClose=${onClose}>
    <${Loaded} state=${state}>${({ quota }) => html`<${Facts} rows=${[
      ["Open streams", quota.max_streams ? count(quota.max_streams) : "no quota"],
      ["Calls", quota.calls_per_s ? `${count(quota.calls_per_s)}/s` : "no quota"],
      ["Published", rate(quota.publish_bytes_per_s)],
      ["Consumed", rate(quota.consume_bytes_per_s)],
    ]} /><p class="muted">At each broker. To change it: <code>${commandLine("danube", "principals", "quota", "set", subject, "max_streams=100")}</code></p>`}<//>
  <//>`;
}

/** What each question says and does. */
function changeOf({ kind, subject, row }, words) {
  const about = encodeURIComponent(subject ?? row?.id ?? words.id ?? "");
  switch (kind) {
    case "suspend":
      return { title: `Suspend ${subject}`, verb: "Suspend", danger: true, method: "POST", path: `security/principals/${about}:suspend`, body: { description: words.why }, done: `${subject} is suspended`, fields: ["why"],
        cli: ["danube", "principals", "suspend", subject, ...(words.why ? ["--reason", words.why] : [])], text: "It may do nothing until it is resumed, with any credential, and its streams end within a second. Its bindings and keys stay." };
    case "resume":
      return { title: `Resume ${subject}`, verb: "Resume", method: "POST", path: `security/principals/${about}:resume`, done: `${subject} is resumed`, fields: [],
        cli: ["danube", "principals", "resume", subject], text: "It has all its rights again." };
    case "binding":
      return { title: `Remove binding ${row.id}`, verb: "Remove", danger: true, method: "DELETE", path: `security/bindings/${about}`, done: `${row.subject} has lost ${row.roles.join(", ")} on ${row.scope}`, fields: [],
        cli: ["danube", "revoke", row.roles.join(","), "from", row.subject, "on", row.scope], text: html`<strong>${row.subject}</strong> loses ${plural(row.roles.length, "role")} (${row.roles.join(", ")}) within <strong>${row.scope}</strong>; what it needed them for ends within a second.` };
    case "key":
      return { title: `Delete API key ${row.id}`, verb: "Delete", danger: true, method: "DELETE", path: `security/keys/${about}`, done: `The key ${row.id} is deleted`, fields: [],
        cli: ["danube", "keys", "delete", row.id], text: html`Programs that use this key of <strong>${row.subject}</strong> are refused from now on, and their streams end within a second. It cannot be brought back.` };
    default:
      return { title: "Revoke a token", verb: "Revoke", danger: true, method: "POST", path: `security/tokens/${about}:revoke`, body: { reason: words.why }, done: `The token ${words.id} is revoked`, fields: ["id", "why"],
        cli: ["danube", "tokens", "revoke", words.id || "ID", ...(words.why ? ["--reason", words.why] : [])], text: "It is accepted no more, at any broker, and streams that were opened with it end within a second. It cannot be brought back." };
  }
}

const FIELDS = { id: "Id of the token", why: "Why; for lists" };

function ChangeDialog({ asked, onClose, onDone }) {
  const [words, setWords] = useState({ id: "", why: "" });
  const { title, verb, danger, method, path, body, done, fields, cli, text } = changeOf(asked, words);
  const run = async () => {
    await call(method, path, { body });
    notify(done);
    onDone();
  };
  return html`<${Confirm} title=${title} verb=${verb} danger=${danger} run=${run} onClose=${onClose} cli=${commandLine(...cli)} disabled=${fields.includes("id") && !words.id.trim()}>
    <p>${text}</p>
    ${fields.map((name) => html`<label class="field"><span>${FIELDS[name]}</span><input type="text" spellcheck=${false} autocomplete="off" value=${words[name]} onInput=${(event) => setWords({ ...words, [name]: event.target.value })} /></label>`)}
  <//>`;
}
