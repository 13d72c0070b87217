// The place of a subscription on the offset line of a topic, and what a seek would change. Pure.

/**
 * The stretches of the line, in order: `{id, label, messages}`. Their numbers are exact; behind the floor, messages of these
 * kinds lie mixed, and are drawn one kind after the other.
 */
export function stretches(row, start) {
  const [floor, end, backlog] = [Number(row.floor), Number(row.end_offset), Number(row.backlog_messages)];
  const flight = Math.min(backlog, Number(row.in_flight_messages));
  const held = Number(row.waiting_messages) + Number(row.delayed_messages) + Number(row.poisoned_messages);
  const again = Math.min(backlog - flight, held);
  return [
    { id: "done", label: "done", messages: Math.max(0, floor - start) },
    { id: "flight", label: "in flight", messages: flight },
    { id: "again", label: "wait for redelivery, are delayed or poisoned", messages: again },
    { id: "acked", label: "acknowledged out of order", messages: Math.max(0, end - floor - backlog) },
    { id: "behind", label: "not delivered yet", messages: backlog - flight - again },
  ];
}

/**
 * What a seek does to one row: acknowledged messages that come again, unacknowledged ones that are left out, and all that are
 * to be delivered then. Offsets are dense, so that these are differences. Behind the floor only the number of acknowledged
 * messages is known, not where they are (the first one there is not): a place further on makes two of the numbers upper
 * bounds (`exact` is false).
 */
export function effectOf(row, target) {
  const [floor, end, backlog] = [Number(row.floor), Number(row.end_offset), Number(row.backlog_messages)];
  const place = Math.min(Math.max(0, target), end);
  const scattered = Math.max(0, end - floor - backlog);
  return {
    place,
    again: Math.min(end - place, Math.max(0, floor - place) + scattered),
    skipped: Math.min(Math.max(0, place - floor), backlog),
    coming: end - place,
    exact: place <= floor + 1 || place === end || scattered === 0,
  };
}
