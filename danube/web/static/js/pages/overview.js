// What happens now, what is not well and what to do about it, and the topics where most happens.

import { bytes, count, duration, milliseconds, plural, shortCount, words } from "../format.js";
import { Chart } from "../chart.js";
import { href, subscriptionHref, topicHref } from "../hooks.js";
import { html, useState } from "../lib.js";
import { kindOf, remedies, urgency } from "../states.js";
import { rateOf, refresh, subscriptionId, useFigures } from "../store.js";
import { Badge, Button, Cli, Empty, Meter, PageHead, ProblemBox, Tile } from "../ui.js";
import { Remedy } from "./remedy.js";
import { backlogs } from "./topics.js";

const SHOWN = 6;

export function OverviewPage() {
  const figures = useFigures();
  if (!figures.broker || !figures.topics || !figures.subscriptions) {
    return figures.error ? html`<${ProblemBox} error=${figures.error} retry=${refresh} />` : html`<p class="loading">Loading …</p>`;
  }
  const { broker, topics, subscriptions } = figures;
  return html`<div class="page">
    <${PageHead} title="Overview" note=${`${plural(topics.length, "topic")}, ${plural(subscriptions.length, "subscription")}, ${broker.brokers.length > 1 ? plural(broker.brokers.length, "broker") : "one broker"} · up ${duration(broker.uptime_s)}`} />
    <${Tiles} figures=${figures} />
    <div class="overview-grid">
      <div><${Attention} figures=${figures} /></div>
      <div><${Rates} history=${figures.history} /><${TopTopics} figures=${figures} /><${Busiest} figures=${figures} /></div>
    </div>
  </div>`;
}

function Tiles({ figures }) {
  const { broker, subscriptions, history } = figures;
  const now = history.at(-1);
  const backlog = subscriptions.reduce((sum, row) => sum + Number(row.backlog_messages), 0);
  const oldest = Math.max(0, ...subscriptions.map((row) => row.oldest_age_s));
  return html`<div class="tiles overview-tiles">
    <${Tile} label="In" value=${now ? shortCount(now.in) : "–"} unit="msg/s" note="into all topics" />
    <${Tile} label="Out" value=${now ? shortCount(now.out) : "–"} unit="msg/s" note="settled" />
    <${Tile} label="Backlog" value=${shortCount(backlog)} unit="msg" note=${oldest ? `oldest ${duration(oldest)}` : "all is settled"} />
    <${Tile} label="Journal" value=${bytes(broker.journal_used_bytes)}>
      <${Meter} value=${broker.journal_used_bytes} most=${broker.journal_limit_bytes} label="Share of the journal in use" />
      <p class="note">of ${bytes(broker.journal_limit_bytes)}, ${plural(broker.journal_files, "file")}</p><//>
    <${Tile} label="Not sealed yet" value=${bytes(broker.unsealed_bytes)} note=${broker.unsealed_bytes ? `oldest ${duration(broker.oldest_unsealed_age_s)}` : "all is in storage"} />
    <${Latency} label="Publish" p50=${broker.publish_p50_s} p99=${broker.publish_p99_s} what="until durable" />
    <${Latency} label="Sync" p50=${broker.sync_p50_s} p99=${broker.sync_p99_s} what="of the journal" />
    <${Tile} label="Memory" value=${broker.memory_bytes ? bytes(broker.memory_bytes) : "–"} kind=${broker.loop_lag_s >= 0.25 ? "bad" : ""}
      note=${[broker.loop_lag_s >= 0 && `loop lag ${milliseconds(broker.loop_lag_s)}`, plural(broker.connections, "connection")].filter(Boolean).join(" · ")} />
  </div>`;
}

/** How long something took in the last minute: the p99 in large, because the slow ones are felt. */
function Latency({ label, p50, p99, what }) {
  const known = p99 >= 0;
  return html`<${Tile} label=${`${label} p99`} value=${known ? milliseconds(p99) : "–"} note=${known ? `p50 ${milliseconds(p50)}, ${what}` : "none in the last minute"} />`;
}

function Rates({ history }) {
  const now = history.at(-1) ?? { in: 0, out: 0 };
  return html`<section class="card rates"><header><h2>Messages a second</h2>
    <ul class="legend inline"><li class="series-1">in ${shortCount(now.in)}</li><li class="series-2">out ${shortCount(now.out)}</li></ul></header>
    <div class="body"><${Chart} points=${history} lines=${[["in", "in"], ["out", "out"]]} told=${`Now ${shortCount(now.in)} messages a second in, ${shortCount(now.out)} out`} />
    <p class="muted small">Since this page was opened, at most 15 minutes.</p></div></section>`;
}

function Attention({ figures }) {
  const [all, setAll] = useState(false);
  const [asked, setAsked] = useState(null);
  const findings = figures.findings?.findings ?? [];
  const unwell = figures.subscriptions.filter((row) => urgency(row) > 0)
    .sort((a, b) => urgency(b) - urgency(a) || Number(b.backlog_messages) - Number(a.backlog_messages));
  const total = findings.length + unwell.length;
  const shown = all ? unwell : unwell.slice(0, Math.max(0, SHOWN - findings.length));
  return html`<section class="card attention"><header><h2>Needs attention</h2>
      ${total > 0 && html`<${Badge} kind=${findings.length || unwell.some((row) => urgency(row) > 3) ? "bad" : "warn"}>${total}<//>`}</header>
    ${total === 0 && html`<div class="all-well"><${Badge} kind="ok">all is well<//><p class="muted">No topic, subscription or storage needs attention.</p></div>`}
    <ul>
      ${findings.map((finding) => html`<li key=${finding.kind + finding.subject}>
        <div class="what"><${Badge} kind="bad">${words(finding.kind)}<//> <strong>${finding.topic ? html`<a href=${topicHref(finding.topic)}>${finding.topic}</a>` : finding.subject}</strong></div>
        <p>${finding.sentence}</p>
        ${finding.remedy && html`<p class="muted">${finding.remedy}</p>`}
        ${pageOf(finding) && html`<div class="actions"><a class="button small" href=${pageOf(finding)}>Show it</a></div>`}</li>`)}
      ${shown.map((row) => html`<${Unwell} key=${subscriptionId(row)} row=${row} onRemedy=${(remedy) => setAsked({ row, remedy })} />`)}
    </ul>
    ${unwell.length > shown.length && html`<div class="more"><${Button} small onClick=${() => setAll(true)}>Show ${unwell.length - shown.length} more<//></div>`}
    ${figures.findings?.silent?.length > 0 && html`<p class="silent muted">No answer from ${figures.findings.silent.join(", ")}: what is not well there is not known.</p>`}
    ${asked && html`<${Remedy} row=${asked.row} id=${asked.remedy.id} onClose=${() => setAsked(null)} />`}
  </section>`;
}

function pageOf(finding) {
  if (finding.topic) return topicHref(finding.topic);
  if (["storage-failing", "sealing-failing"].includes(finding.kind)) return href("storage");
  if (finding.kind === "connections-nearly-full") return href("connections");
  return finding.kind === "journal-nearly-full" ? href("subscriptions") : "";
}

function Unwell({ row, onRemedy }) {
  const all = remedies(row);
  return html`<li>
    <div class="what"><${Badge} kind=${kindOf(row.state)}>${words(row.state)}<//>
      <a href=${subscriptionHref(row.topic, row.subscription)}><strong>${row.subscription}</strong></a> <span class="muted">of ${row.topic}</span>${row.partitions > 0 && html`<span class="tag">${row.partitions} partitions</span>`}
      ${row.oldest_age_s > 0 && html`<span class="muted age">oldest ${duration(row.oldest_age_s)}</span>`}</div>
    <p>${row.sentence}${row.partitions > 1 ? `; over all partitions ${plural(row.backlog_messages, "message")}` : ""}</p>
    <div class="remedy"><${Cli} line=${all[0].cli} />
      ${all.map((remedy) => remedy.id === "open"
        ? html`<a class="button small" href=${subscriptionHref(row.topic, row.subscription)}>${remedy.label}</a>`
        : remedy.id === "storage" ? html`<a class="button small" href=${href("storage")}>${remedy.label}</a>`
        : html`<${Button} small onClick=${() => onRemedy(remedy)}>${remedy.label}<//>`)}</div>
  </li>`;
}

/** A short list with bars: the rows with the largest values. */
function Ranking({ title, rows, valueOf, shownOf, empty }) {
  const ranked = rows.map((row) => [row, valueOf(row)]).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]).slice(0, SHOWN);
  const most = ranked[0]?.[1] ?? 1;
  return html`<section class="card ranking"><header><h2>${title}</h2><a class="small" href="#/topics">all topics</a></header>
    ${ranked.length === 0 ? html`<${Empty} title=${empty} />` : html`<ol>${ranked.map(([row, value]) => html`<li key=${row.topic}>
      <i style=${{ width: `${Math.max(1, (value / most) * 100)}%` }}></i><a href=${topicHref(row.topic)}>${row.topic}</a><b>${shownOf(value)}</b></li>`)}</ol>`}</section>`;
}

function TopTopics({ figures }) {
  const behind = backlogs(figures.subscriptions);
  return html`<${Ranking} title="Largest backlogs" rows=${figures.topics} valueOf=${(row) => behind.get(row.topic) ?? 0} shownOf=${count} empty="No subscription is behind" />`;
}

function Busiest({ figures }) {
  const moving = figures.topics.some((row) => rateOf(figures, row) > 0);
  return moving
    ? html`<${Ranking} title="Busiest topics" rows=${figures.topics} valueOf=${(row) => rateOf(figures, row)} shownOf=${(value) => `${shortCount(value)}/s`} empty="" />`
    : html`<${Ranking} title="Largest topics" rows=${figures.topics} valueOf=${(row) => row.stored_bytes} shownOf=${bytes} empty="No topic stores messages" />`;
}
