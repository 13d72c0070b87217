// How long a topic keeps messages: changes its rules after a dry run, which says what they would remove.

import { call, topicPath } from "../api.js";
import { bytes, commandLine, count, plural } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Confirm, notify } from "../ui.js";

const DAY_S = 86_400;
const GIB = 1024 ** 3;

const valid = (text) => text === "" || (Number.isFinite(Number(text)) && Number(text) >= 0);

export function RetentionDialog({ topic, retention, onClose, onDone }) {
  const [days, setDays] = useState(retention.max_age_s ? String(retention.max_age_s / DAY_S) : "");
  const [gib, setGib] = useState(retention.max_bytes ? String(retention.max_bytes / GIB) : "");
  const [acknowledged, setAcknowledged] = useState(retention.acknowledged);
  const [tried, setTried] = useState({ plans: null, error: null });
  const rules = { max_age_s: Number(days) * DAY_S, max_bytes: Math.round(Number(gib) * GIB), acknowledged };
  const usable = valid(days) && valid(gib);
  const change = (body, signal) => call("PATCH", `${topicPath(topic)}/retention`, { body: { retention: rules, ...body }, signal });
  useEffect(() => {
    setTried({ plans: null, error: null });
    if (!usable) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        setTried({ plans: (await change({ dry_run: true }, abort.signal)).plans, error: null });
      } catch (error) {
        if (error.name !== "AbortError") setTried({ plans: null, error });
      }
    }, 250);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [days, gib, acknowledged]);
  const run = async () => {
    await change({});
    notify(`The retention of ${topic} is changed`);
    onDone();
  };
  const options = [
    ...(rules.max_age_s > 0 ? ["--max-age", `${rules.max_age_s}s`] : []),
    ...(rules.max_bytes > 0 ? ["--max-bytes", String(rules.max_bytes)] : []),
    ...(acknowledged ? ["--delete-acknowledged"] : []),
  ];
  return html`<${Confirm} title=${`Retention of ${topic}`} verb="Change it" danger run=${run} onClose=${onClose} disabled=${!usable || !tried.plans}
    cli=${commandLine("danube", "topics", "retention", topic, ...(options.length ? options : ["--clear"]))}>
    <div class="fields">
      <label class="field grow"><span>Remove after days; empty: never</span><input type="text" inputmode="decimal" value=${days} aria-invalid=${valid(days) ? undefined : "true"} onInput=${(event) => setDays(event.target.value.trim())} /></label>
      <label class="field grow"><span>Remove beyond GiB; empty: never</span><input type="text" inputmode="decimal" value=${gib} aria-invalid=${valid(gib) ? undefined : "true"} onInput=${(event) => setGib(event.target.value.trim())} /></label>
    </div>
    <label class="check"><input type="checkbox" checked=${acknowledged} onChange=${(event) => setAcknowledged(event.target.checked)} />Remove what all subscriptions have acknowledged</label>
    <p class="muted small">Each rule removes messages independently of the others. Rules are applied within a minute.</p>
    <${Cut} tried=${tried} />
  <//>`;
}

function Cut({ tried }) {
  if (tried.error) return html`<p class="hint warn">It cannot be told what would be removed: ${tried.error.message}</p>`;
  if (!tried.plans) return html`<p class="hint" role="status">Looking what would be removed …</p>`;
  const sum = (of) => tried.plans.reduce((total, plan) => total + of(plan), 0);
  const removed = sum((plan) => plan.new_start_offset - plan.start_offset);
  const freed = sum((plan) => plan.freed_bytes);
  const kept = sum((plan) => plan.end_offset - plan.new_start_offset);
  return html`<p class="hint effect" role="status">Dry run: now it would remove <strong>${plural(removed, "message")}</strong>${freed ? ` (${bytes(freed)} in storage)` : ""} for good, and keep ${count(kept)}.</p>`;
}
