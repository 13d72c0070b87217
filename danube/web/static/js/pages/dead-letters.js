// The dead letters of a subscription: why they failed, which of them go back, and which are given up.

import { call, get } from "../api.js";
import { commandLine, count, plural, shortTime, time } from "../format.js";
import { subscriptionHref, topicHref, useData } from "../hooks.js";
import { html, useEffect, useState } from "../lib.js";
import { visible } from "../payload.js";
import { Table } from "../table.js";
import { Badge, Button, Confirm, Empty, Loaded, notify } from "../ui.js";

const SHOWN = 500;
const placeOf = (letter) => `${letter.partition}:${letter.offset}`;
const NO_REASON = "(no reason given)";

/** A tab of the subscription's page. */
export function DeadLettersTab({ path, topic, subscription }) {
  const [reason, setReason] = useState("");
  const [handled, setHandled] = useState(false);
  const [chosen, setChosen] = useState(() => new Set());
  const [asked, setAsked] = useState(null);
  const state = useData((signal) => get(`${path}/dlq`, { limit: SHOWN, reason, handled: handled ? 1 : undefined, payload_bytes: 256 }, signal), [path, reason, handled], { every: 5000 });
  const toggle = (place, on) => {
    const next = new Set(chosen);
    if (on) next.add(place);
    else next.delete(place);
    setChosen(next);
  };
  const ask = (verb) => (page) => {
    const here = page.letters.filter((letter) => !letter.handled).map(placeOf);
    const offsets = [...chosen].filter((place) => here.includes(place));
    setAsked({ verb, topic: page.topic, choice: offsets.length ? { offsets } : reason ? { reason } : { all: true } });
  };
  const done = () => {
    setChosen(new Set());
    state.reload();
  };
  return html`<${Loaded} state=${state} what="The dead letters could not be read">${(page) => {
    if (!page.exists || (page.messages === 0 && page.letters.length === 0)) return html`<${None} page=${page} topic=${topic} subscription=${subscription} />`;
    const some = page.letters.some((letter) => chosen.has(placeOf(letter)) && !letter.handled);
    const what = some ? "chosen" : reason ? "these" : "all";
    return html`<div class="stack">
      <${Reasons} page=${page} reason=${reason} onReason=${(next) => (setReason(next), setChosen(new Set()))} />
      <${Table} name="dead-letters" label="Dead letters" noun="letter" rows=${page.letters} columns=${columnsOf(chosen, toggle, handled)} sort="offset" rowKey=${placeOf}
        empty=${html`<${Empty} title=${reason ? "None of these waits" : "No dead letter waits"}>${page.messages > 0 && "All were replayed or dropped."}<//>`}>
        <${Button} small kind="primary" disabled=${page.waiting === 0} onClick=${() => ask("replay")(page)}>Replay ${what} …<//>
        <${Button} small kind="danger" disabled=${page.waiting === 0} onClick=${() => ask("drop")(page)}>Drop ${what} …<//>
        <label class="check small"><input type="checkbox" checked=${handled} onChange=${(event) => setHandled(event.target.checked)} />replayed and dropped ones, too</label>
      <//>
      <p class="muted small">${page.more ? `Not all are listed: ${count(page.looked_at)} were looked at, and at most ${count(SHOWN)} are shown. ` : ""}The letters are in
        <a href=${topicHref(page.topic)}>${page.topic}</a>, which keeps also those that were replayed or dropped, until its retention removes them.</p>
      ${asked && html`<${CarryOut} key=${asked.verb} asked=${asked} path=${path} onClose=${() => setAsked(null)} onDone=${done} />`}
    </div>`;
  }}<//>`;
}

function None({ page, topic, subscription }) {
  const line = commandLine("danube", "subscriptions", "policy", topic, subscription, "--poison", "dead_letter");
  return html`<div class="card">${page.sends
    ? html`<${Empty} title="Nothing has failed yet"><strong>${page.topic}</strong> is created with the first message that this subscription gives up.<//>`
    : html`<${Empty} title="This subscription has no dead letters" cli=${line}>Its policy does not send messages that fail too often to a dead-letter topic.<//>`}</div>`;
}

/** How often each reason is; a click shows only its letters. */
function Reasons({ page, reason, onReason }) {
  const most = page.reasons[0]?.messages ?? 1;
  return html`<section class="card reasons"><header><h2>Why they failed</h2><${Badge} kind=${page.waiting ? "bad" : "ok"}>${page.waiting ? `${count(page.waiting)} wait` : "none waits"}<//></header>
    ${page.reasons.length === 0 ? html`<p class="muted body">No letter waits.</p>` : html`<ol>${page.reasons.map((row) => html`<li key=${row.reason}>
      <i style=${{ width: `${Math.max(1, (row.messages / most) * 100)}%` }}></i>
      <button type="button" aria-pressed=${reason !== "" && reason === row.reason} disabled=${row.reason === ""} onClick=${() => onReason(reason === row.reason ? "" : row.reason)}>${visible(row.reason) || NO_REASON}</button>
      <b>${count(row.messages)}</b></li>`)}</ol>`}
    ${reason !== "" && html`<p class="more">Only letters with this reason are listed. <button type="button" class="link" onClick=${() => onReason("")}>Show all</button></p>`}
  </section>`;
}

function columnsOf(chosen, toggle, handled) {
  return [
    { id: "offset", label: "Offset", value: (row) => row.offset, cell: (row) => html`<label class="check line"><input type="checkbox" aria-label=${`Choose offset ${row.offset}`} disabled=${row.handled}
      checked=${chosen.has(placeOf(row))} onChange=${(event) => toggle(placeOf(row), event.target.checked)} />${row.partition ? `${row.partition}:` : ""}${count(row.offset)}</label>` },
    { id: "failed", label: "Failed", value: (row) => row.failed_us, cell: (row) => html`<span class="line" title=${time(row.failed_us / 1000)}>${shortTime(row.failed_us / 1000)}</span>` },
    { id: "reason", label: "Reason", value: (row) => row.reason ?? "", cell: (row) => html`<span class="cut" title=${visible(row.reason ?? "")}>${visible(row.reason ?? "") || NO_REASON}</span>` },
    { id: "attempts", label: "Attempts", right: true, value: (row) => Number(row.attempts) || 0, cell: (row) => row.attempts ?? "–" },
    { id: "original", label: "Original", value: (row) => `${row.original_topic ?? ""} ${row.original_offset ?? ""}`, cell: (row) => html`<${Original} letter=${row} />` },
    { id: "key", label: "Key", value: (row) => row.key ?? "", cell: (row) => html`<span class="cut mono small">${visible(row.key ?? "")}</span>` },
    { id: "payload", label: "Payload", value: (row) => row.payload ?? row.payload_base64 ?? "", cell: (row) => html`<span class="cut short mono small">${row.payload === null ? "binary" : visible(row.payload)}${row.truncated ? " …" : ""}</span>` },
    handled && { id: "state", label: "State", value: (row) => (row.handled ? "done" : "waits"), cell: (row) => html`<${Badge} kind=${row.handled ? "" : "warn"}>${row.handled ? "done" : "waits"}<//>` },
  ].filter(Boolean);
}

function Original({ letter }) {
  const topic = letter.original_topic;
  if (!topic) return html`<span class="muted">not known</span>`;
  const part = /^(.*)-part-(\d+)$/.exec(topic);
  const at = letter.original_offset === null ? undefined : `${part ? part[2] : 0}:${letter.original_offset}`;
  return html`<a class="line" href=${topicHref(part ? part[1] : topic, { at })}>${part ? `partition ${part[2]}, ` : ""}offset ${count(letter.original_offset)}</a>`;
}

/** The question before a replay or a drop: a dry run says what would happen. */
function CarryOut({ asked, path, onClose, onDone }) {
  const { verb, topic, choice } = asked;
  const [to, setTo] = useState("");
  const [tried, setTried] = useState({ plan: null, error: null });
  const body = { ...choice, ...(verb === "replay" && to.trim() ? { to: to.trim() } : {}) };
  useEffect(() => {
    const abort = new AbortController();
    setTried({ plan: null, error: null });
    const timer = setTimeout(async () => {
      try {
        setTried({ plan: await call("POST", `${path}/dlq:${verb}`, { body: { ...body, dry_run: true }, signal: abort.signal }), error: null });
      } catch (error) {
        if (error.name !== "AbortError") setTried({ plan: null, error });
      }
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [to]);
  const run = async () => {
    const done = await call("POST", `${path}/dlq:${verb}`, { body });
    const where = done.topics.map((each) => each.topic).join(", ");
    notify(`${plural(done.messages, "letter")} ${verb === "replay" ? `replayed${where ? ` to ${where}` : ""}` : "dropped"}${done.left ? `, ${count(done.left)} left` : ""}`, done.left ? "bad" : "ok");
    onDone();
  };
  const named = choice.offsets ? choice.offsets.flatMap((place) => ["--offset", place]) : choice.reason ? ["--reason", choice.reason] : verb === "drop" ? ["--all"] : [];
  const words = choice.offsets ? plural(choice.offsets.length, "chosen letter") : choice.reason ? "letters with one reason" : "all letters";
  return html`<${Confirm} title=${`${verb === "replay" ? "Replay" : "Drop"} ${words}`} verb=${verb === "replay" ? "Replay" : "Drop"} danger=${verb === "drop"} run=${run} onClose=${onClose}
    disabled=${!tried.plan?.messages} cli=${commandLine("danube", "dlq", verb, topic, ...named, ...(body.to ? ["--to", body.to] : []))}>
    ${choice.reason && html`<p class="wrap">Reason: <strong>${visible(choice.reason)}</strong></p>`}
    ${verb === "replay" && html`<label class="field"><span>To; empty: to the topics in which they failed</span><input type="text" spellcheck=${false} placeholder="/namespace/topic" value=${to} onInput=${(event) => setTo(event.target.value)} /></label>`}
    <${Plan} tried=${tried} verb=${verb} />
    <p class="muted">${verb === "replay"
      ? "A letter counts as replayed once its copy is durable. The copies are new messages: every subscription of the topic gets them, with the key and the headers of the original."
      : "Dropped letters count as done: they are not replayed any more, and stay in the dead-letter topic until its retention removes them."}</p>
  <//>`;
}

function Plan({ tried, verb }) {
  if (tried.error) return html`<p class="hint warn" role="status">It cannot be told what would happen: ${tried.error.message}${tried.error.remedy ? `; ${tried.error.remedy}` : ""}</p>`;
  if (!tried.plan) return html`<p class="hint" role="status">Looking what would happen …</p>`;
  const { messages, topics, left, reasons, more } = tried.plan;
  return html`<div class="hint effect" role="status"><p>Dry run: <strong>${plural(messages, "letter")}</strong> would be ${verb === "replay" ? "replayed" : "dropped"}.</p>
    <ul>${topics.map((each) => html`<li>${plural(each.messages, "message")} ${verb === "replay" ? "to" : "of"} <strong>${each.topic}</strong></li>`)}
      ${left > 0 && html`<li>${plural(left, "letter")} cannot be sent and would stay: ${reasons[0]}${reasons.length > 1 ? ", and others" : ""}</li>`}
      ${more && html`<li>Not all letters were looked at: more may follow with another run.</li>`}</ul></div>`;
}

/** The address of the tab of a subscription. */
export const deadLettersHref = (topic, subscription) => `${subscriptionHref(topic, subscription)}?tab=dead-letters`;
