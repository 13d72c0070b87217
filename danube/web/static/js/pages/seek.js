// Moves a subscription. Before it does, it says how many messages come again, and how many are left out.

import { call, get, subscriptionPath, topicPath } from "../api.js";
import { commandLine, count, plural } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { effectOf } from "../offsets.js";
import { Confirm, notify } from "../ui.js";

/** The offset in each partition that a choice means; throws Problem. */
async function targetsOf({ kind, offset, at }, topic, rows, info, signal) {
  if (kind === "latest") return rows.map((row) => Number(row.end_offset));
  if (kind === "offset") return rows.map(() => Number(offset));
  if (kind === "earliest" && rows.length === 1) return [Number(info.start_offset)];
  const partitions = rows.length > 1 ? rows.map((_, number) => number) : [undefined];
  const from = kind === "earliest" ? "earliest" : `@${new Date(at).toISOString()}`;
  return Promise.all(
    partitions.map(async (partition, number) => {
      const page = await get(`${topicPath(topic)}/messages`, { from, limit: 1, payload_bytes: 0, partition }, signal);
      return page.messages.length ? Number(page.messages[0].offset) : Number(rows[number].end_offset);
    }),
  );
}

function bodyOf({ kind, offset, at }) {
  if (kind === "offset") return { position: Number(offset) };
  if (kind === "time") return { position: "latest", time_us: new Date(at).getTime() * 1000 };
  return { position: kind };
}

const ago = (minutes) => {
  const date = new Date(Date.now() - minutes * 60_000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
};

export function SeekDialog({ topic, subscription, rows, info, onClose, onDone, initial = "earliest" }) {
  const [kind, setKind] = useState(initial);
  const [offset, setOffset] = useState(String(rows[0].floor));
  const [at, setAt] = useState(ago(10));
  const [tried, setTried] = useState({ effects: null, error: null });
  const choice = { kind, offset, at };
  const usable = (kind !== "offset" || /^\d+$/.test(offset)) && (kind !== "time" || Number.isFinite(new Date(at).getTime()));
  useEffect(() => {
    if (!usable) return undefined;
    const abort = new AbortController();
    setTried({ effects: null, error: null });
    const timer = setTimeout(async () => {
      try {
        const targets = await targetsOf(choice, topic, rows, info, abort.signal);
        setTried({ effects: rows.map((row, index) => effectOf(row, targets[index])), error: null });
      } catch (error) {
        if (error.name !== "AbortError") setTried({ effects: null, error });
      }
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [kind, offset, at]);
  const run = async () => {
    await call("POST", `${subscriptionPath(topic, subscription)}:seek`, { body: bodyOf(choice), headers: { "If-Match": `"${info.topic_id}"` } });
    notify(`${subscription} is moved`);
    onDone();
  };
  const position = kind === "offset" ? offset : kind === "time" ? (usable ? new Date(at).toISOString() : "") : kind;
  return html`<${Confirm} title=${`Move ${subscription}`} verb="Move it" run=${run} onClose=${onClose} disabled=${!usable || !tried.effects}
    cli=${commandLine("danube", "subscriptions", "seek", topic, subscription, position)}>
    <fieldset class="options"><legend>To</legend>
      ${[["earliest", "the oldest message"], ["latest", "the end: skip what waits"], ["offset", "an offset"], ["time", "a time"]].map(
        ([id, label]) => html`<label class="check"><input type="radio" name="to" checked=${kind === id} onChange=${() => setKind(id)} />${label}</label>`,
      )}
    </fieldset>
    ${kind === "offset" && html`<label class="field"><span>Offset</span><input type="number" min="0" value=${offset} onInput=${(event) => setOffset(event.target.value)} /></label>
      ${rows.length === 1 && html`<input type="range" aria-label="Offset" min=${Number(info.start_offset)} max=${Number(rows[0].end_offset)} value=${offset} onInput=${(event) => setOffset(event.target.value)} />`}`}
    ${kind === "time" && html`<label class="field"><span>Messages stored at or after</span><input type="datetime-local" step="1" value=${at} onInput=${(event) => setAt(event.target.value)} /></label>
      <div class="actions">${[["10 min", 10], ["1 h", 60], ["6 h", 360], ["1 day", 1440]].map(([label, minutes]) => html`<button type="button" class="button small" onClick=${() => setAt(ago(minutes))}>${label} ago</button>`)}</div>`}
    <${Effect} tried=${tried} rows=${rows} />
  <//>`;
}

/** What was found out by trying: `tried` is {effects, error}. */
export function Effect({ tried, rows }) {
  if (tried.error) return html`<p class="hint warn">It cannot be told what comes again: ${tried.error.message}</p>`;
  if (!tried.effects) return html`<p class="hint" role="status">Looking what comes again …</p>`;
  const total = (name) => tried.effects.reduce((sum, each) => sum + each[name], 0);
  const places = tried.effects.map((each) => count(each.place)).join(", ");
  const most = tried.effects.every((each) => each.exact) ? "" : "at most ";
  const are = (number) => (number === 1 ? "is" : "are");
  return html`<div class="hint effect" role="status">
    <p>Dry run: it continues at offset ${places}${rows.length > 1 ? " of its partitions" : ""}.</p>
    <ul><li>${most}<strong>${plural(total("again"), "acknowledged message")}</strong> ${total("again") === 1 ? "comes" : "come"} again</li>
      <li>${most}<strong>${plural(total("skipped"), "unacknowledged message")}</strong> ${are(total("skipped"))} left out</li>
      <li><strong>${plural(total("coming"), "message")}</strong> ${are(total("coming"))} to be delivered then</li></ul></div>`;
}
