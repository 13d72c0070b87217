// The message browser: a topic's messages from any place, filtered, as a table of chosen fields; and its live tail.

import { follow, get, rowsOf, topicPath } from "../api.js";
import { csv, download, jsonLines } from "../csv.js";
import { compile, FilterError, pointed } from "../filter.js";
import { bytes, commandLine, count, plural, shortCount, shortTime, time } from "../format.js";
import { parseRoute, replaceQuery, topicHref, useKey, useStored } from "../hooks.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { fieldsOf, Shown, valueAt, visible } from "../payload.js";
import { useSearch } from "../search.js";
import { TailBuffer } from "../tail.js";
import { Button, Cli, Empty, notify, ProblemBox } from "../ui.js";
import { MessageView } from "./message.js";

const ROW_HEIGHT = 31;
const MOST_LOADED = 20_000;

/** The values of `from`, for people. */
const PLACES = [
  ["newest", "newest"],
  ["earliest", "oldest"],
  ["offset", "from offset"],
  ["time", "from time"],
  ["live", "live tail"],
];

function placeOf(from) {
  if (from === "live") return { place: "live", detail: "" };
  if (!from || from.startsWith("-")) return { place: "newest", detail: "" };
  if (from === "earliest") return { place: "earliest", detail: "" };
  if (from.startsWith("@")) return { place: "time", detail: from.slice(1) };
  return { place: "offset", detail: from };
}

/** Loads messages for an address: what is there, and how to load those behind it. */
function useMessages(topic, from, limit, partition) {
  const [state, setState] = useState({ rows: [], loading: true, error: null, more: false, next: null });
  const turn = useRef(0);
  const load = async (start, older) => {
    const mine = ++turn.current;
    setState((old) => ({ ...old, loading: true, error: null }));
    try {
      const answer = await get(`${topicPath(topic)}/messages`, { from: start, limit, partition });
      if (mine !== turn.current) return;
      const rows = rowsOf(answer, "messages").map((row) => new Shown(row));
      setState({ rows: older.concat(rows), loading: false, error: null, next: answer.next ?? null });
    } catch (error) {
      if (mine === turn.current) setState((old) => ({ ...old, loading: false, error }));
    }
  };
  useEffect(() => {
    if (from === "live") {
      turn.current += 1;
      setState({ rows: [], loading: false, error: null, next: null });
    } else load(from || `-${limit}`, []);
  }, [topic, from, limit, partition]);
  const loadOlder = async (start) => {
    const first = state.rows[0].number;
    const begin = Math.max(start, first - limit);
    const mine = ++turn.current;
    setState((old) => ({ ...old, loading: true, error: null }));
    try {
      const answer = await get(`${topicPath(topic)}/messages`, { from: begin, limit: first - begin });
      const rows = rowsOf(answer, "messages").map((row) => new Shown(row)).filter((each) => each.number < first);
      if (mine === turn.current) setState((old) => ({ ...old, rows: rows.concat(old.rows), loading: false }));
    } catch (error) {
      if (mine === turn.current) setState((old) => ({ ...old, loading: false, error }));
    }
  };
  return { ...state, loadOlder, reload: () => load(from || `-${limit}`, []), loadMore: () => load(state.next, state.rows) };
}

/** Follows a topic while `on`: rows, what waits in a pause, and pause and resume. */
function useTail(topic, on, partition) {
  const [, redraw] = useState(0);
  const [status, setStatus] = useState("connecting");
  const tail = useRef({ buffer: new TailBuffer(), abort: null, last: "", full: false });
  const start = () => {
    const it = tail.current;
    it.abort?.abort();
    it.abort = new AbortController();
    it.full = false;
    let queued = false;
    follow(`${topicPath(topic)}/messages:tail`, { from: "latest", partition }, {
      signal: it.abort.signal,
      lastId: it.last,
      onState: (state) => setStatus(state === "open" ? "open" : state),
      onEvents: (events, last) => {
        const rows = events.filter((event) => event.name === "message").map((event) => new Shown(JSON.parse(event.data)));
        it.last = last;
        if (!rows.length) return;
        if (!it.buffer.add(rows)) {
          it.full = true;
          it.abort.abort();
        }
        if (!queued) {
          queued = true;
          setTimeout(() => {
            queued = false;
            redraw((number) => number + 1);
          }, 150);
        }
      },
    });
  };
  useEffect(() => {
    if (!on) return undefined;
    tail.current = { buffer: new TailBuffer(), abort: null, last: "", full: false };
    setStatus("connecting");
    start();
    return () => tail.current.abort.abort();
  }, [topic, on, partition]);
  const { buffer } = tail.current;
  const toggle = () => {
    if (buffer.paused) {
      buffer.resume();
      if (tail.current.full) start(); // it goes on behind the last message that arrived
    } else buffer.pause();
    redraw((number) => number + 1);
  };
  return { buffer, status, toggle };
}

export function MessagesTab({ topic, info, query }) {
  const [limit, setLimit] = useStored("messages.limit", 200);
  const [expression, setExpression] = useState(query.q ?? "");
  const [fields, setFields] = useStored(`fields.${topic}`, []);
  const [saved, setSaved] = useStored(`filters.${topic}`, []);
  const [open, setOpen] = useState(null);
  const { place, detail } = placeOf(query.from);
  const live = place === "live";
  const messages = useMessages(topic, query.from ?? "", limit, query.partition ?? "");
  const tail = useTail(topic, live, query.partition ?? "");
  const search = useSearch(topic, query.partition ?? "");
  const searched = search.filter !== "";
  const loaded = searched ? search.rows : live ? tail.buffer.rows : messages.rows;
  const { predicate, problem } = useMemo(() => compiled(expression), [expression]);
  const found = useMemo(() => {
    if (searched) return loaded;
    const rows = predicate ? loaded.filter(predicate) : loaded;
    return place === "newest" || live ? rows.toReversed() : rows;
  }, [loaded, predicate, place, searched]);
  const searchAll = (event) => {
    event.preventDefault();
    if (predicate && !live) search.start(expression, query.from && !query.from.startsWith("-") ? query.from : "earliest");
  };
  const go = (changes) => {
    setOpen(null);
    search.close();
    location.hash = topicHref(topic, { ...parseRoute(location.hash).query, at: undefined, ...changes });
  };
  useEffect(() => {
    const timer = setTimeout(() => replaceQuery({ q: expression || undefined }), 300);
    return () => clearTimeout(timer);
  }, [expression]);
  const linked = useLinked(topic, query.at);
  const shown = open ?? linked.message;
  const show = (message) => {
    setOpen(message);
    linked.forget();
    replaceQuery({ at: message ? message.id : undefined, q: expression || undefined });
  };
  const step = (by) => {
    const index = found.findIndex((each) => each.id === shown?.id);
    const next = found[Math.min(found.length - 1, Math.max(0, index + by))];
    if (next) show(next);
  };
  useKey("p", () => live && tail.toggle());
  useKey("j", () => step(1));
  useKey("k", () => step(-1));
  useKey("Escape", () => shown && show(null));
  const keep = () => setSaved([...new Set([...saved, expression.trim()])].slice(-20));
  return html`<div class="page">
    <div class="card browser">
      <div class="toolbar">
        <select aria-label="Show" value=${place} onChange=${(event) => choosePlace(event.target.value, go, info)}>
          ${PLACES.map(([id, label]) => html`<option value=${id}>${label}</option>`)}</select>
        ${place === "offset" && html`<${DetailField} kind="number" label="Offset" value=${detail} onEnter=${(value) => go({ from: value || "0" })} />`}
        ${place === "time" && html`<${DetailField} kind="datetime-local" label="Time" value=${localOf(detail)} onEnter=${(value) => value && go({ from: `@${new Date(value).toISOString()}` })} />`}
        ${info.partitions > 0 && html`<select aria-label="Partition" value=${query.partition ?? ""} onChange=${(event) => go({ partition: event.target.value })}>
          <option value="">all partitions</option>${Array.from({ length: info.partitions }, (_, number) => html`<option value=${number}>partition ${number}</option>`)}</select>`}
        ${!live && html`<select aria-label="Number of messages" value=${limit} onChange=${(event) => setLimit(Number(event.target.value))}>
          ${[50, 200, 500, 1000].map((number) => html`<option value=${number}>${count(number)}</option>`)}</select>
          <${Button} icon="refresh" label="Load again" onClick=${messages.reload} />`}
        ${live && html`<${Button} kind=${tail.buffer.paused ? "primary" : ""} icon=${tail.buffer.paused ? "play" : "pause"} onClick=${tail.toggle}>${tail.buffer.paused ? "Continue" : "Pause"}<//>`}
        <form class="filter-box grow" onSubmit=${searchAll}><input type="search" spellcheck=${false} placeholder='Filter: words, or  key == "42" and value.total > 10' aria-label="Filter messages"
          aria-invalid=${problem ? "true" : undefined} aria-describedby="filter-state" value=${expression} onInput=${(event) => setExpression(event.target.value)} />
          ${!live && html`<${Button} icon="search" disabled=${!predicate} title="Search the whole topic, from the place on the left" onClick=${searchAll}>Search all<//>`}
        </form>
        <details class="menu"><summary class="button" aria-label="Saved filters">Saved</summary><div>
          <${Button} small disabled=${!expression.trim() || Boolean(problem)} onClick=${keep}>Save this filter<//>
          ${saved.map((each) => html`<p class="saved"><button type="button" class="link mono" onClick=${() => setExpression(each)}>${each}</button>
            <${Button} small kind="plain" icon="close" label=${`Forget ${each}`} onClick=${() => setSaved(saved.filter((one) => one !== each))} /></p>`)}
        </div></details>
        <${FieldsMenu} loaded=${loaded} fields=${fields} onFields=${setFields} />
        <details class="menu"><summary class="button" aria-label="Export">Export</summary><div class="choices">
          <${Button} small kind="plain" icon="download" onClick=${() => exportLines(topic, found)}>JSON lines (${count(found.length)})<//>
          <${Button} small kind="plain" icon="download" onClick=${() => exportCsv(topic, found, fields)}>CSV (${count(found.length)})<//>
        </div></details>
      </div>
      <p class="state-line" id="filter-state" role="status">${problem
        ? html`<span class="error-text">${problem.message}</span>`
        : searched ? html`<${SearchState} search=${search} />` : html`${predicate ? html`<strong>${plural(found.length, "match", "matches")}</strong> in the ${plural(loaded.length, "message")} loaded` : html`${plural(loaded.length, "message")} loaded`}${live && liveText(tail)}${
          !live && loaded.length > 0 && !predicate ? ` · offsets ${count(loaded[0].offset)} to ${count(loaded.at(-1).offset)}` : ""}`}</p>
      ${problem && html`<${Pointer} expression=${expression} position=${problem.position} />`}
      ${searched && html`<${ProblemBox} error=${search.error} what="The search has failed" />`}
      <${ProblemBox} error=${searched ? null : messages.error} retry=${messages.reload} what="The messages could not be read" />
      ${live && tail.status.message && html`<${ProblemBox} error=${tail.status} what="The live tail is interrupted" />`}
      <div class=${`split ${shown || linked.error ? "with-detail" : ""}`}>
        <${Rows} rows=${found} fields=${fields} selected=${shown?.id} onOpen=${show} partitions=${info.partitions} loading=${messages.loading}
          empty=${searched ? emptySearch(search) : emptyText({ topic, live, loading: messages.loading, loaded, predicate, onMore: messages.next ? messages.loadMore : null })} />
        ${shown && html`<${MessageView} key=${shown.id} topic=${topic} message=${shown} fields=${fields} onFields=${setFields} onFilter=${setExpression}
          onClose=${() => show(null)} onStep=${step} />`}
        ${!shown && linked.error && html`<aside class="detail"><${ProblemBox} error=${linked.error} what="The linked message could not be read" /></aside>`}
      </div>
      ${!live && !searched && loaded.length > 0 && loaded.length < MOST_LOADED && html`<div class="more actions">
        ${info.partitions === 0 && loaded[0].number > Number(info.start_offset) && html`<${Button} small disabled=${messages.loading} onClick=${() => messages.loadOlder(Number(info.start_offset))}>${count(limit)} older<//>`}
        ${messages.next && html`<${Button} small disabled=${messages.loading} onClick=${messages.loadMore}>${count(limit)} newer<//>`}</div>`}
    </div>
    <${Cli} line=${searched ? commandLine("danube", "search", topic, search.filter) : cliOf(topic, query.from, limit)} />
  </div>`;
}

function compiled(expression) {
  try {
    return { predicate: compile(expression), problem: null };
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    return { predicate: null, problem: error };
  }
}

/** The filter with a caret below the character at which it stops making sense. */
function Pointer({ expression, position }) {
  const { text, before } = pointed(expression, position);
  return html`<pre class="pointer" aria-hidden="true">${`${visible(text)}\n${" ".repeat(before)}^`}</pre>`;
}

const REASONS = { complete: "searched to the end", matches: "a search ends after 1,000 matches", bytes: "a search ends after 8 MiB of matches", time: "a search ends after 10 minutes" };

/** How far a search is, and what can be done about it. */
function SearchState({ search }) {
  const { progress, end, running, rows } = search;
  const share = progress && progress.total ? Math.min(1, progress.scanned / progress.total) : 0;
  return html`<span class="search-state"><strong>${plural(rows.length, "match", "matches")}</strong>
    <span>${progress ? `${count(progress.scanned)} of ${plural(progress.total, "message")} searched` : running ? "searching …" : ""}${progress && running ? ` · ${shortCount(progress.per_second)} a second` : ""}${end ? ` · ${REASONS[end.reason] ?? end.reason}` : running ? "" : " · stopped"}</span>
    ${running && html`<progress max="1" value=${share} aria-label="Progress of the search"></progress>`}
    ${running && html`<${Button} small icon="pause" onClick=${search.stop}>Stop<//>`}
    ${end && end.reason !== "complete" && html`<${Button} small icon="search" onClick=${search.more}>Search on<//>`}
    <${Button} small kind="plain" icon="close" onClick=${search.close}>Close the search<//></span>`;
}

function emptySearch({ running }) {
  if (running) return html`<p class="loading" role="status">Searching …</p>`;
  return html`<${Empty} title="No message matches">Change the filter, or search from an earlier place.<//>`;
}

function choosePlace(place, go, info) {
  if (place === "newest") go({ from: undefined });
  else if (place === "offset") go({ from: String(info.partitions ? 0 : info.start_offset) });
  else if (place === "time") go({ from: `@${new Date(Date.now() - 3_600_000).toISOString()}` });
  else go({ from: place });
}

function localOf(iso) {
  const text = time(Date.parse(iso));
  return text === "–" ? "" : text.slice(0, 19).replace(" ", "T");
}

function DetailField({ kind, label, value, onEnter }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const enter = (event) => {
    event.preventDefault();
    onEnter(text);
  };
  return html`<form onSubmit=${enter}><input aria-label=${label} type=${kind} min="0" step="1" value=${text}
    onInput=${(event) => setText(event.target.value)} onBlur=${() => text !== value && onEnter(text)} /></form>`;
}

function FieldsMenu({ loaded, fields, onFields }) {
  const offered = useMemo(() => [...new Set([...fieldsOf(loaded), ...fields])], [loaded, fields]);
  return html`<details class="menu"><summary class="button" aria-label="Fields">Fields${fields.length > 0 ? ` · ${fields.length}` : ""}</summary><div>
    ${offered.length === 0 && html`<p class="muted">The loaded messages are not JSON objects.</p>`}
    ${offered.map((path) => html`<label key=${path}><input type="checkbox" checked=${fields.includes(path)}
      onChange=${(event) => onFields(event.target.checked ? [...fields, path] : fields.filter((each) => each !== path))} /><span class="mono">${path}</span></label>`)}
  </div></details>`;
}

function liveText({ buffer, status }) {
  const parts = [status === "open" ? "live" : status === "connecting" ? "connecting …" : "not connected"];
  if (buffer.paused) parts.push(`paused, ${plural(buffer.waiting.length, "message")} wait`);
  if (buffer.dropped) parts.push(`the oldest ${count(buffer.dropped)} have left this page`);
  return ` · ${parts.join(" · ")}`;
}

function emptyText({ topic, live, loading, loaded, predicate, onMore }) {
  if (loading) return html`<p class="loading" role="status">Loading …</p>`;
  if (loaded.length && predicate) {
    return html`<${Empty} title="No loaded message matches">${onMore ? "The filter looks only at what is loaded; Search all looks at the whole topic." : "The filter looks only at what is loaded."}<//>`;
  }
  if (live) return html`<${Empty} title="Waiting for messages">New messages appear here as they are published.<//>`;
  return html`<${Empty} title="There are no messages here" cli=${`echo '{"id": 1}' | ${commandLine("danube", "produce", topic)}`} />`;
}

function cliOf(topic, from, limit) {
  const { place, detail } = placeOf(from);
  if (place === "live") return commandLine("danube", "read", topic, "--start", "latest", "--follow");
  if (place === "newest") return commandLine("danube", "read", topic, "-o", "json");
  return commandLine("danube", "read", topic, "--start", place === "earliest" ? "earliest" : detail, "-n", limit, "-o", "json");
}

/** The message that a link names, read once; `at` is `partition:offset`. */
function useLinked(topic, at) {
  const [state, setState] = useState({ message: null, error: null });
  useEffect(() => {
    setState({ message: null, error: null });
    if (!at) return undefined;
    const abort = new AbortController();
    const [partition, offset] = at.split(":");
    get(`${topicPath(topic)}/messages/${encodeURIComponent(partition)}/${encodeURIComponent(offset)}`, {}, abort.signal)
      .then((row) => setState({ message: new Shown(row), error: null }))
      .catch((error) => error.name !== "AbortError" && setState({ message: null, error }));
    return () => abort.abort();
  }, [topic, at]);
  return { ...state, forget: () => (state.message || state.error) && setState({ message: null, error: null }) };
}

/** The rows in sight; rows have one height, so those above and below are two empty rows. */
function Rows({ rows, fields, selected, onOpen, partitions, empty }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 900 });
  useEffect(() => {
    const measure = () => setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - 15);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + 15);
  const heads = ["Time", ...(partitions ? ["Part."] : []), "Offset", "Key", ...fields.map((path) => path), ...(fields.length ? [] : ["Payload"]), "Size"];
  const open = (event, message) => {
    event.preventDefault();
    onOpen(message);
  };
  return html`<div class="rows" ref=${box} tabindex="0" role="region" aria-label="Messages" onScroll=${(event) => setView({ top: event.target.scrollTop, height: event.target.clientHeight })}>
    ${rows.length === 0 ? empty : html`<table aria-rowcount=${rows.length}>
      <thead><tr>${heads.map((head) => html`<th scope="col" class=${head === "Size" ? "right size" : ["Offset", "Part."].includes(head) ? "right" : ""}><span>${head}</span></th>`)}</tr></thead>
      <tbody>
        ${first > 0 && html`<tr class="spacer" key="above"><td colspan=${heads.length} style=${{ height: `${first * ROW_HEIGHT}px` }}></td></tr>`}
        ${rows.slice(first, last).map((message) => html`<tr key=${message.id} class=${message.id === selected ? "selected" : ""} onClick=${(event) => open(event, message)}>
          <td class="nowrap" title=${time(message.publishedMs || message.appendedMs)}>${shortTime(message.publishedMs || message.appendedMs)}</td>
          ${partitions > 0 && html`<td class="right">${message.partition}</td>`}
          <td class="right"><button type="button" class="link" onClick=${(event) => open(event, message)}>${count(message.offset)}</button></td>
          <td class="key"><span>${message.key === null ? html`<span class="muted">–</span>` : visible(message.key)}</span></td>
          ${fields.map((path) => html`<td class="value"><span>${shownValue(valueAt(message.json, path))}</span></td>`)}
          ${fields.length === 0 && html`<td class="value wide"><span>${message.preview}</span></td>`}
          <td class="right muted size">${bytes(message.size)}</td>
        </tr>`)}
        ${last < rows.length && html`<tr class="spacer" key="below"><td colspan=${heads.length} style=${{ height: `${(rows.length - last) * ROW_HEIGHT}px` }}></td></tr>`}
      </tbody>
    </table>`}
  </div>`;
}

function shownValue(value) {
  if (value === undefined) return html`<span class="muted">–</span>`;
  return visible(typeof value === "object" ? JSON.stringify(value) : String(value)).slice(0, 240);
}

function exportLines(topic, rows) {
  download(`${topic}.jsonl`, jsonLines(rows.map((message) => message.exported())));
  notify(`${plural(rows.length, "message")} exported`);
}

function exportCsv(topic, rows, fields) {
  const head = ["time", "partition", "offset", "key", ...(fields.length ? fields : ["payload"]), "attributes"];
  const lines = rows.map((message) => [
    message.publishedMs ? new Date(message.publishedMs).toISOString() : "", message.partition, message.offset, message.key,
    ...(fields.length ? fields.map((path) => valueAt(message.json, path)) : [message.raw]), message.attributes,
  ]);
  download(`${topic}.csv`, csv(head, lines), "text/csv");
  notify(`${plural(rows.length, "message")} exported`);
}
