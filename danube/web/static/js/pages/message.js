// One message: its facts, its headers, and its payload as a tree, text or bytes.

import { get, topicPath } from "../api.js";
import { download } from "../csv.js";
import { bytes, count, time } from "../format.js";
import { topicHref, useData, useStored } from "../hooks.js";
import { html, useMemo, useState } from "../lib.js";
import { hexDump, Shown, visible, visibleLines } from "../payload.js";
import { Button, copyText, Facts, notify } from "../ui.js";
import { PublishDialog } from "./publish.js";
import { WhoHasIt } from "./who.js";

const MOST_TEXT = 200_000;
const MOST_NODES = 200;

/** A message whose payload was loaded in part, as a whole once that has come. */
function useWhole(topic, part) {
  const path = `${topicPath(topic)}/messages/${part.partition}/${part.offset}`;
  const state = useData((signal) => (part.truncated ? get(path, {}, signal) : Promise.resolve(null)), [path]);
  return useMemo(() => (state.data ? new Shown(state.data) : part), [state.data, part]);
}

export function MessageView({ topic, message: part, fields, onFields, onFilter, onClose, onStep }) {
  const message = useWhole(topic, part);
  const [wanted, setWanted] = useStored("payload.view", "json");
  const [again, setAgain] = useState(false);
  const views = [message.json !== undefined && "json", message.text !== null && "text", "hex"].filter(Boolean);
  const view = views.includes(wanted) ? wanted : views[0];
  const link = () => copyText(new URL(topicHref(topic, { at: message.id }), document.baseURI).href).then(() => notify("The link is copied"));
  const attributes = Object.entries(message.attributes);
  return html`<aside class="detail" aria-label="Message">
    <header><h2>Offset ${count(message.offset)}</h2>
      <${Button} small kind="plain" label="Previous message" onClick=${() => onStep(-1)}>↑<//>
      <${Button} small kind="plain" label="Next message" onClick=${() => onStep(1)}>↓<//>
      <${Button} small kind="plain" icon="close" label="Close the message" onClick=${onClose} /></header>
    <div class="body">
      <div class="actions">
        <${Button} small icon="link" onClick=${link}>Link<//>
        <${Button} small icon="copy" disabled=${message.text === null} onClick=${() => copyText(message.text).then(() => notify("The payload is copied"))}>Copy<//>
        <${Button} small icon="download" onClick=${() => download(`${topic}-${message.partition}-${message.offset}`, message.bytes)}>Download<//>
        <${Button} small icon="send" onClick=${() => setAgain(true)}>Send again …<//>
      </div>
      <${Facts} rows=${[
        ["Key", message.key === null ? html`<span class="muted">none</span>` : html`<button type="button" class="link mono" title="Filter by this key" onClick=${() => onFilter(`key == ${JSON.stringify(message.key)}`)}>${visible(message.key)}</button>`],
        ["Published", time(message.publishedMs)],
        message.appendedMs > 0 && ["Stored", time(message.appendedMs)],
        ["Place", `partition ${message.partition}, offset ${message.offset}`],
        message.producer && ["Producer", html`<span class="mono small">${visible(message.producer)}</span>`],
        ["Size", bytes(message.size)],
      ]} />
      ${attributes.length > 0 && html`<h3>Headers</h3><dl class="facts headers">${attributes.map(
        ([name, value]) => html`<dt class="mono">${visible(name)}</dt><dd><button type="button" class="link mono" title="Filter by this header"
          onClick=${() => onFilter(`header.${name} == ${JSON.stringify(String(value))}`)}>${visible(String(value))}</button></dd>`,
      )}</dl>`}
      <div class="payload-head"><h3>Payload</h3><div class="switch" role="group" aria-label="View of the payload">${views.map(
        (each) => html`<button type="button" aria-pressed=${each === view} onClick=${() => setWanted(each)}>${{ json: "JSON", text: "Text", hex: "Hex" }[each]}</button>`,
      )}</div></div>
      ${message.truncated && html`<p class="hint">Only the beginning of ${bytes(message.size)} has been loaded yet …</p>`}
      ${view === "json" && html`<div class="tree"><${Node} value=${message.json} path="" fields=${fields} onFields=${onFields} onFilter=${onFilter} depth=${0} /></div>`}
      ${view === "text" && html`<${TextView} text=${message.text} />`}
      ${view === "hex" && html`<${HexView} data=${message.bytes} />`}
      <${WhoHasIt} topic=${topic} message=${message} />
    </div>
    ${again && html`<${PublishDialog} topic=${topic} message=${message} onClose=${() => setAgain(false)} />`}
  </aside>`;
}

function TextView({ text }) {
  if (!text) return html`<p class="muted">The payload is empty.</p>`;
  return html`<pre class="payload" tabindex="0" dir="ltr">${visibleLines(text.slice(0, MOST_TEXT))}</pre>
    ${text.length > MOST_TEXT && html`<p class="muted small">The first ${count(MOST_TEXT)} of ${count(text.length)} characters. Download it to see all.</p>`}`;
}

function HexView({ data }) {
  const [most, setMost] = useState(2048);
  return html`<pre class="payload hex" tabindex="0">${hexDump(data, most) || "no bytes"}</pre>
    ${data.length > most && html`<${Button} small onClick=${() => setMost(most * 8)}>Show more of ${bytes(data.length)}<//>`}`;
}

/** A value of the tree. Objects and lists open and close; scalar fields can become a column or a filter. */
function Node({ name, value, path, depth, fields, onFields, onFilter }) {
  const [open, setOpen] = useState(depth < 3);
  const [limit, setLimit] = useState(MOST_NODES);
  const label = name === undefined ? null : html`<span class="name">${visible(name)}</span>: `;
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    const isField = path && /^[^"\s()]+$/.test(path);
    return html`<div class="leaf"><span>${label}<span class=${`value ${kind}`} dir="ltr">${kind === "string" ? `"${visibleLines(value.slice(0, 4000))}${value.length > 4000 ? " …" : ""}"` : String(value)}</span></span>
      ${isField && html`<span class="tools"><button type="button" class="link" onClick=${() => onFilter(`value.${path} == ${kind === "string" ? JSON.stringify(value.slice(0, 200)) : value}`)}>filter</button>
        <button type="button" class="link" onClick=${() => onFields(fields.includes(path) ? fields.filter((each) => each !== path) : [...fields, path])}>${fields.includes(path) ? "no column" : "column"}</button></span>`}</div>`;
  }
  const list = Array.isArray(value);
  const entries = Object.entries(value);
  const size = `${list ? "[" : "{"}${entries.length}${list ? "]" : "}"}`;
  return html`<div class="branch">
    <button type="button" class="fold" aria-expanded=${open} onClick=${() => setOpen(!open)}><i aria-hidden="true">${open ? "▾" : "▸"}</i>${label}<span class="muted">${size}</span></button>
    ${open && html`<div class="children">${entries.slice(0, limit).map(
      ([key, each]) => html`<${Node} key=${key} name=${key} value=${each} path=${list ? `${path}[${key}]` : path ? `${path}.${key}` : key} depth=${depth + 1}
        fields=${fields} onFields=${onFields} onFilter=${onFilter} />`,
    )}${entries.length > limit && html`<${Button} small onClick=${() => setLimit(limit + MOST_NODES)}>${count(entries.length - limit)} more<//>`}</div>`}
  </div>`;
}
