// The figures that all pages share: broker, topics and subscriptions, fetched together, and the rates between two fetches.

import { all, get } from "./api.js";
import { useEffect, useState } from "./lib.js";
import { grouped } from "./states.js";

const PERIOD_MS = 3000;
const KEPT_MS = 15 * 60 * 1000;

/** What was fetched last; `history` holds the rates of the last 15 minutes, oldest first. */
let snapshot = { broker: null, findings: null, topics: null, subscriptions: null, error: null, at: 0, rates: new Map(), out: new Map(), history: [] };
const listeners = new Set();
let timer = null;
let busy = false;

function publish(next) {
  snapshot = next;
  for (const listener of listeners) listener(snapshot);
}

/** Number of messages that a subscription has done with, over all partitions. */
function settled(row) {
  return row.rows.reduce((sum, each) => sum + each.end_offset - each.backlog_messages, 0);
}

export const subscriptionId = (row) => `${row.topic} ${row.subscription}`;

async function fetchAll() {
  const began = performance.now();
  const [broker, findings, topics, subscriptions] = await Promise.allSettled([
    get("broker"),
    get("findings"),
    all("topics", "topics"),
    all("subscriptions", "subscriptions").then(grouped),
  ]);
  const at = performance.now();
  const failed = [broker, findings, topics, subscriptions].find((each) => each.status === "rejected" && each.reason.status !== 403);
  const value = (each, old) => (each.status === "fulfilled" ? each.value : each.reason.status === 403 ? (old ?? []) : old);
  const next = {
    broker: broker.status === "fulfilled" ? broker.value : snapshot.broker,
    findings: findings.status === "fulfilled" ? findings.value : snapshot.findings,
    topics: value(topics, snapshot.topics),
    subscriptions: value(subscriptions, snapshot.subscriptions),
    error: failed ? failed.reason : null,
    at,
    rates: snapshot.rates,
    out: snapshot.out,
    history: snapshot.history,
  };
  if (!failed) measure(next);
  publish(next);
  return at - began;
}

let before = null;

function measure(next) {
  const ends = new Map(next.topics.map((row) => [`${row.topic} ${row.topic_id}`, Number(row.end_offset)]));
  const done = new Map(next.subscriptions.map((row) => [subscriptionId(row), settled(row)]));
  if (before && next.at - before.at < 60_000) {
    const seconds = (next.at - before.at) / 1000;
    next.rates = rates(before.ends, ends, seconds);
    next.out = rates(before.done, done, seconds);
    const sum = (map) => [...map.values()].reduce((total, each) => total + each, 0);
    const now = Date.now();
    next.history = [...snapshot.history.filter((each) => each.at > now - KEPT_MS), { at: now, in: sum(next.rates), out: sum(next.out) }];
  }
  before = { at: next.at, ends, done };
}

function rates(old, now, seconds) {
  const found = new Map();
  for (const [id, value] of now) {
    if (old.has(id)) found.set(id, Math.max(0, value - old.get(id)) / seconds);
  }
  return found;
}

/** Messages a second that arrive in a topic. */
export function rateOf(state, row) {
  return state.rates.get(`${row.topic} ${row.topic_id}`) ?? 0;
}

async function turn() {
  timer = null;
  let took = 0;
  if (!busy && !document.hidden) {
    busy = true;
    try {
      took = await fetchAll();
    } finally {
      busy = false;
    }
  }
  // Without a proof each further call would count as a failed one; after the login the page is loaded again.
  if (snapshot.error?.status === 401) return;
  // A broker with very many topics is asked more rarely: a fetch takes at most a twentieth of the time.
  if (listeners.size && !timer) timer = setTimeout(turn, Math.max(PERIOD_MS, took * 20));
}

/** Fetches now, for example after a change. */
export async function refresh() {
  clearTimeout(timer);
  await turn();
}

/** The shared figures, kept up to date while a page shows them. */
export function useFigures() {
  const [state, setState] = useState(snapshot);
  useEffect(() => {
    listeners.add(setState);
    if (!timer && !busy) turn();
    else setState(snapshot);
    return () => listeners.delete(setState);
  }, []);
  return state;
}
