// Remedies that the overview offers: the dialogs of the subscription's page, opened where the problem is shown.

import { get, rowsOf, subscriptionPath, topicPath } from "../api.js";
import { useData } from "../hooks.js";
import { html } from "../lib.js";
import { refresh } from "../store.js";
import { Dialog, ProblemBox } from "../ui.js";
import { PolicyDialog } from "./policy.js";
import { SeekDialog } from "./seek.js";

export function Remedy({ row, id, onClose }) {
  const path = subscriptionPath(row.topic, row.subscription);
  const state = useData(async (signal) => {
    const [found, info] = await Promise.all([get(path, {}, signal), get(topicPath(row.topic), {}, signal)]);
    return { rows: rowsOf(found, "subscriptions"), info };
  }, [path]);
  if (!state.data) {
    return html`<${Dialog} title=${row.subscription} onClose=${onClose}>${state.error ? html`<${ProblemBox} error=${state.error} />` : html`<p class="loading">Loading …</p>`}<//>`;
  }
  const { rows, info } = state.data;
  const shared = { topic: row.topic, subscription: row.subscription, onClose, onDone: refresh };
  return id === "dead-letter"
    ? html`<${PolicyDialog} ...${shared} path=${path} policy=${rows[0].policy} initial=${{ poison: "dead_letter" }} />`
    : html`<${SeekDialog} ...${shared} rows=${rows} info=${info} initial="latest" />`;
}
