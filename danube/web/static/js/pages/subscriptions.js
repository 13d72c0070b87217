// All subscriptions, worst first.

import { count, duration, shortCount, words } from "../format.js";
import { subscriptionHref, topicHref } from "../hooks.js";
import { html } from "../lib.js";
import { kindOfRow, urgency } from "../states.js";
import { refresh, subscriptionId, useFigures } from "../store.js";
import { Table } from "../table.js";
import { Badge, Empty, PageHead, ProblemBox } from "../ui.js";

/** Columns of a table of subscriptions. The hidden order "urgency" puts the worst first, by their backlog. */
export function subscriptionColumns(figures) {
  const worst = (row) => urgency(row) * 1e15 + Number(row.backlog_messages);
  const out = (row) => figures.out.get(subscriptionId(row)) ?? 0;
  return [
    { id: "subscription", label: "Subscription", value: (row) => row.subscription, cell: (row) => html`<a href=${subscriptionHref(row.topic, row.subscription)}>${row.subscription}</a>` },
    { id: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => html`<span class="nowrap"><a href=${topicHref(row.topic)}>${row.topic}</a>${row.partitions > 0 && html` <span class="tag">${row.partitions} partitions</span>`}</span>` },
    { id: "urgency", label: "State", value: (row) => row.state ?? "", sortValue: worst, cell: (row) => row.state && html`<${Badge} kind=${kindOfRow(row)}>${words(row.state)}<//>` },
    { id: "backlog", label: "Backlog", right: true, value: (row) => Number(row.backlog_messages), cell: (row) => count(row.backlog_messages) },
    { id: "age", label: "Oldest", right: true, value: (row) => row.oldest_age_s, cell: (row) => (row.oldest_age_s < 0 ? "–" : row.oldest_age_s > 0 ? duration(row.oldest_age_s) : "") },
    { id: "out", label: "Settled /s", right: true, value: (row) => Math.round(out(row) * 10) / 10, cell: (row) => shortCount(out(row)) },
    { id: "flight", label: "In flight", right: true, value: (row) => Number(row.in_flight_messages), cell: (row) => count(row.in_flight_messages) },
    { id: "poisoned", label: "Poisoned", right: true, value: (row) => Number(row.poisoned_messages), cell: (row) => count(row.poisoned_messages) },
    { id: "dead", label: "Dead-lettered", right: true, hidden: true, value: (row) => Number(row.dead_lettered_messages), cell: (row) => count(row.dead_lettered_messages) },
    { id: "consumers", label: "Consumers", right: true, value: (row) => row.consumers },
    { id: "type", label: "Type", value: (row) => row.type, cell: (row) => html`<span class="tag">${words(row.type)}</span>` },
    { id: "waiting", label: "Waiting again", right: true, hidden: true, value: (row) => Number(row.waiting_messages), cell: (row) => count(row.waiting_messages) },
    { id: "delayed", label: "Delayed", right: true, hidden: true, value: (row) => Number(row.delayed_messages), cell: (row) => count(row.delayed_messages) },
    { id: "redelivered", label: "Redelivered", right: true, hidden: true, value: (row) => Number(row.redelivered_messages), cell: (row) => count(row.redelivered_messages) },
    { id: "sentence", label: "Why", hidden: true, value: (row) => row.sentence ?? "", cell: (row) => html`<span class="cut" title=${row.sentence}>${row.sentence}</span>` },
  ];
}

export function SubscriptionsPage() {
  const figures = useFigures();
  const empty = html`<${Empty} title="There are no subscriptions yet" cli="danube consume /default/orders -s my-service">The first consumer of a subscription creates it.<//>`;
  return html`<div class="page">
    <${PageHead} title="Subscriptions" note="The worst first: those that do not move, then by backlog." />
    ${figures.subscriptions
      ? html`<${Table} name="subscriptions" label="Subscriptions" noun="subscription" rows=${figures.subscriptions} columns=${subscriptionColumns(figures)} sort="-urgency" rowKey=${subscriptionId} empty=${empty} />`
      : figures.error ? html`<${ProblemBox} error=${figures.error} retry=${refresh} />` : html`<p class="loading">Loading …</p>`}
  </div>`;
}
