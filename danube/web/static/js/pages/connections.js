// Who is connected, over which protocol, since when; ends a connection.

import { call, get } from "../api.js";
import { bytes, commandLine, duration, time } from "../format.js";
import { useData } from "../hooks.js";
import { html, useState } from "../lib.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Loaded, notify, PageHead } from "../ui.js";

export function ConnectionsPage() {
  const state = useData((signal) => get("connections", {}, signal), [], { every: 3000 });
  const [ending, setEnding] = useState(null);
  const columns = (rows) => [
    { id: "id", label: "Id", value: (row) => row.id, cell: (row) => html`<span class="mono">${row.id}</span>` },
    { id: "peer", label: "Peer", value: (row) => row.peer, cell: (row) => html`<span class="mono">${row.peer}</span>` },
    { id: "protocol", label: "Protocol", value: (row) => row.protocol, cell: (row) => html`<span class="tag">${row.protocol}</span>${row.secure && html` <span class="tag">TLS</span>`}` },
    { id: "client", label: "Client", value: (row) => row.client },
    rows.some((row) => row.principal) && { id: "principal", label: "Principal", value: (row) => row.principal },
    { id: "streams", label: "Streams", right: true, value: (row) => row.streams },
    { id: "received", label: "Received", right: true, value: (row) => row.received_bytes, cell: (row) => bytes(row.received_bytes) },
    { id: "sent", label: "Sent", right: true, value: (row) => row.sent_bytes, cell: (row) => bytes(row.sent_bytes) },
    { id: "queued", label: "Not read yet", right: true, value: (row) => row.queued_bytes, cell: (row) => (row.queued_bytes ? html`<${Badge} kind="warn">${bytes(row.queued_bytes)}<//>` : "") },
    { id: "since", label: "For", right: true, value: (row) => row.since_us, cell: (row) => html`<span title=${time(row.since_us / 1000)}>${duration(Math.max(0, Date.now() / 1000 - row.since_us / 1e6))}</span>` },
    { id: "end", label: "Action", right: true, unsorted: true, value: () => "", cell: (row) => html`<${Button} small kind="danger" label=${`End … ${row.id}`} onClick=${() => setEnding(row)}>End …<//>` },
  ].filter(Boolean);
  const end = async () => {
    await call("DELETE", `connections/${encodeURIComponent(ending.id)}`);
    notify(`Connection ${ending.id} is ended`);
    state.reload();
  };
  return html`<div class="page"><${PageHead} title="Connections" note="Clients and other brokers. Requests of browsers are not among them." />
    <${Loaded} state=${state} what="The connections could not be read">${(answer) => html`
      <${Table} name="connections" label="Connections" noun="connection" rows=${answer.connections} columns=${columns(answer.connections)} sort="id" rowKey=${(row) => row.id} />
      ${answer.more && html`<p class="muted">There are more connections than fit into one answer: danube connections list shows all.</p>`}
      ${answer.silent.length > 0 && html`<p class="muted">No answer from ${answer.silent.join(", ")}: their connections are missing.</p>`}`}<//>
    ${ending && html`<${Confirm} title=${`End connection ${ending.id}`} verb="End it" danger run=${end} onClose=${() => setEnding(null)} cli=${commandLine("danube", "connections", "kill", ending.id)}>
      <p>${ending.client || "The client"} at ${ending.peer} loses this connection. Its messages in flight are delivered again, and it may connect again at once.</p><//>`}
  </div>`;
}
