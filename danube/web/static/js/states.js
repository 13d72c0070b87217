// What the states of subscriptions mean: how bad they are, and what to do. Pure.

import { commandLine } from "./format.js";

/** For each state of `explain`: how it looks, and how urgent it is (0: well). */
const STATES = {
  moving: ["ok", 0],
  "caught-up": ["ok", 0],
  "waiting-for-acks": ["info", 0],
  "waiting-for-delivery-time": ["info", 0],
  "rate-limited": ["warn", 1],
  "waiting-for-retry": ["warn", 2],
  "no-credit": ["warn", 2],
  "window-full": ["warn", 3],
  "no-matching-consumer": ["warn", 3],
  "no-consumer": ["warn", 3],
  "dead-lettering": ["bad", 4],
  "waiting-for-storage": ["bad", 4],
  blocked: ["bad", 5],
  failed: ["bad", 6],
};

export const kindOf = (state) => (STATES[state] ?? ["warn", 2])[0];

/** How a row of the list looks: one that is well is not coloured as a warning, for example without consumers and messages. */
export function kindOfRow(row) {
  const kind = kindOf(row.state);
  return row.well && (kind === "warn" || kind === "bad") ? "" : kind;
}

/** How urgent a subscription is: 0 if the broker says that it is well. */
export function urgency(row) {
  if (row.well) return 0;
  return (STATES[row.state] ?? ["warn", 2])[1];
}

/** Remedies of an unwell subscription, best first: `{id, label, cli}`; the page knows what each id opens. */
export function remedies(row) {
  const seek = { id: "seek", label: "Skip what waits …", cli: commandLine("danube", "subscriptions", "seek", row.topic, row.subscription, "latest") };
  const explain = commandLine("danube", "subscriptions", "explain", row.topic, row.subscription);
  switch (row.state) {
    case "no-consumer":
      return [{ id: "open", label: "Show it", cli: commandLine("danube", "consume", row.topic, "-s", row.subscription) }, seek];
    case "blocked":
      return [
        { id: "dead-letter", label: "Send it to dead letters …", cli: commandLine("danube", "subscriptions", "policy", row.topic, row.subscription, "--poison", "dead_letter") },
        seek,
      ];
    case "waiting-for-storage":
      return [{ id: "storage", label: "Show the storage", cli: "danube storage list" }];
    case "dead-lettering":
      return [{ id: "open", label: "Show it", cli: explain }];
    default:
      return [{ id: "open", label: "Show its consumers", cli: explain }];
  }
}

const SUMMED = [
  "backlog_messages", "in_flight_messages", "waiting_messages", "delayed_messages", "poisoned_messages", "dead_lettered_messages",
  "redelivered_messages", "consumers",
];

/** The topic that a partition belongs to; a plain topic is its own. */
export function baseOf(topic) {
  return topic.replace(/-part-\d+$/, "");
}

/**
 * One row for each subscription of a topic: the sums over its partitions, with the state of the worst of them. `partitions`
 * is their number, 0 of a plain topic; `rows` are the rows of the partitions.
 */
export function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const topic = baseOf(row.topic);
    const id = `${topic} ${row.subscription}`;
    const old = groups.get(id);
    if (!old) {
      groups.set(id, { ...row, topic, partitions: topic === row.topic ? 0 : 1, rows: [row] });
      continue;
    }
    const worse = urgency(row) > urgency(old) || (urgency(row) === urgency(old) && row.backlog_messages > Math.max(...old.rows.map((each) => each.backlog_messages)));
    const sums = Object.fromEntries(SUMMED.map((name) => [name, old[name] + row[name]]));
    const told = worse ? { state: row.state, sentence: row.sentence, well: row.well } : {};
    groups.set(id, { ...old, ...sums, ...told, oldest_age_s: Math.max(old.oldest_age_s, row.oldest_age_s), partitions: old.partitions + 1, rows: [...old.rows, row] });
  }
  return [...groups.values()];
}
