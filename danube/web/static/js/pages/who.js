// Who has a message: for each subscription of its topic, where the message is.

import { get, topicPath } from "../api.js";
import { subscriptionHref, useData } from "../hooks.js";
import { html } from "../lib.js";
import { visible } from "../payload.js";
import { Button, Loaded } from "../ui.js";

const KINDS = { acknowledged: "ok", "in-flight": "info", poisoned: "bad", "dead-lettered": "bad", waiting: "warn" };
const EVERY_MS = 5000;

export function WhoHasIt({ topic, message }) {
  const path = `${topicPath(topic)}/messages/${message.partition}/${message.offset}/deliveries`;
  const state = useData((signal) => get(path, {}, signal), [path], { every: EVERY_MS });
  return html`<section class="who" aria-label="Who has it">
    <div class="payload-head"><h3>Who has it</h3><${Button} small kind="plain" icon="refresh" label="Look again" onClick=${state.reload} /></div>
    <${Loaded} state=${state} what="Who has the message cannot be told">${({ deliveries }) =>
      deliveries.length === 0
        ? html`<p class="muted">The topic has no subscriptions.</p>`
        : html`<ul>${deliveries.map((row) => html`<li key=${row.subscription}>
            <a href=${subscriptionHref(topic, row.subscription)}>${visible(row.subscription)}</a>
            <span class="badge ${KINDS[row.state] ?? ""}">${row.state.replaceAll("-", " ")}</span>
            <p class="small">${visible(row.sentence)}</p></li>`)}</ul>`}<//>
  </section>`;
}
