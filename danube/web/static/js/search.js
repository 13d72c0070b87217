// A search of the broker in a topic: its matches as they come, how far it is, and why it has ended.

import { stream, topicPath } from "./api.js";
import { useEffect, useRef, useState } from "./lib.js";
import { Shown } from "./payload.js";

/** Most matches of one search; another one goes on behind the last. */
const MOST_MATCHES = 1000;
const IDLE = { filter: "", rows: [], progress: null, end: null, error: null, running: false };

/** One search at a time: `{filter, rows, progress, end, error, running, start, more, stop, close}`; `filter` is empty without one. */
export function useSearch(topic, partition) {
  const [state, setState] = useState(IDLE);
  const abort = useRef(null);
  const run = async (filter, start, older) => {
    abort.current?.abort();
    const mine = (abort.current = new AbortController());
    const change = (changes) => mine === abort.current && setState((old) => ({ ...old, ...changes(old) }));
    setState({ ...IDLE, filter, rows: older, running: true });
    const onEvents = (events) => {
      const rows = events.filter((event) => event.name === "match").map((event) => new Shown(JSON.parse(event.data)));
      const last = (name) => events.findLast((event) => event.name === name);
      const [progress, end, failed] = ["progress", "end", "error"].map((name) => last(name) && JSON.parse(last(name).data));
      change((old) => ({
        rows: rows.length ? old.rows.concat(rows) : old.rows, progress: end ?? progress ?? old.progress, end: end ?? old.end,
        error: failed ? Object.assign(new Error(failed.detail), failed) : old.error,
      }));
    };
    try {
      const body = { filter, start, max_matches: MOST_MATCHES, max_s: 600 };
      await stream(`${topicPath(topic)}/messages:search`, { partition }, body, { signal: mine.signal, onEvents });
      change((old) => ({ running: false, error: old.error ?? (old.end ? null : new Error("the connection to the broker was lost; search again")) }));
    } catch (error) {
      if (error.name !== "AbortError") change(() => ({ running: false, error }));
    }
  };
  const stop = () => {
    abort.current?.abort();
    abort.current = null;
    setState((old) => ({ ...old, running: false }));
  };
  const close = () => {
    stop();
    setState(IDLE);
  };
  useEffect(() => close, [topic, partition]);
  return { ...state, start: (filter, start) => run(filter, start, []), more: () => run(state.filter, state.end.next, state.rows), stop, close };
}
