// Hooks: the address, data that is fetched again, keys, and values that this browser remembers.

import { watchWho, whoIs } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./lib.js";

/** The page's address, kept behind the `#`: `#/topics/shop/orders?tab=messages`. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(query)), hash: hash || "#/" };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not encoded, so it is what it says
  }
}

export function useRoute() {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** The address of a page: `href("topics", "shop", "orders")`, with an object as the query. */
export function href(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** The address of a topic's page. */
export function topicHref(topic, query = {}) {
  return href("topics", ...topic.replace(/^\//, "").split("/"), query);
}

export function subscriptionHref(topic, subscription) {
  return href("subscriptions", ...topic.replace(/^\//, "").split("/"), subscription);
}

/** Changes the query of the address without a new entry of the history. */
export function replaceQuery(changes) {
  const { parts, query } = parseRoute(location.hash);
  history.replaceState(null, "", href(...parts, { ...query, ...changes }));
}

/**
 * Data of the API: `{data, error, loading, reload}`. It is fetched when `deps` change, and again every `every` ms while the
 * page is visible. An error keeps the older data.
 */
export function useData(load, deps, { every = 0 } = {}) {
  const [state, setState] = useState({ data: undefined, error: null, loading: true });
  const current = useRef(0);
  const latest = useRef(load);
  latest.current = load;
  const fetchIt = useCallback(async (signal, turn) => {
    try {
      const data = await latest.current(signal);
      if (turn === current.current) setState({ data, error: null, loading: false });
    } catch (error) {
      if (turn === current.current && error.name !== "AbortError") setState((old) => ({ ...old, error, loading: false }));
    }
  }, []);
  const [again, setAgain] = useState(0);
  useEffect(() => {
    const turn = ++current.current;
    const abort = new AbortController();
    let timer;
    let busy = false;
    const tick = async () => {
      if (!busy && !document.hidden) {
        busy = true;
        await fetchIt(abort.signal, turn);
        busy = false;
      }
    };
    if (!again) setState((old) => ({ ...old, loading: true }));
    tick();
    if (every) timer = setInterval(tick, every);
    if (document.hidden && !every) fetchIt(abort.signal, turn);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [...deps, again]);
  return { ...state, reload: useCallback(() => setAgain((number) => number + 1), []) };
}

/** Who the caller is; null: it is not known, or not yet. */
export function useWho() {
  const [who, setWho] = useState(whoIs());
  useEffect(() => {
    setWho(whoIs());
    return watchWho(setWho);
  }, []);
  return who;
}

/** A value that this browser remembers. */
export function useStored(name, initial) {
  const key = `danube.${name}`;
  const [value, setValue] = useState(() => read(key, initial));
  const store = useCallback(
    (next) => {
      setValue(next);
      try {
        localStorage.setItem(key, JSON.stringify(next));
      } catch {
        // Storage may be full or forbidden; then the value lasts as long as the page.
      }
    },
    [key],
  );
  return [value, store];
}

function read(key, initial) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? initial;
  } catch {
    return initial; // nothing readable was remembered
  }
}

/** Whether the focus is where letters are text. */
export function isTyping(event) {
  return event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
}

/** Calls `action` when a key is pressed outside of fields and dialogs. */
export function useKey(key, action) {
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => {
    const pressed = (event) => {
      if (event.key === key && !isTyping(event) && !document.querySelector("dialog[open]")) {
        event.preventDefault();
        latest.current();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [key]);
}

/** Closes menus (`details.menu`) by a click elsewhere or Escape. */
export function useMenus() {
  useEffect(() => {
    const close = (event) => {
      for (const menu of document.querySelectorAll("details.menu[open]")) {
        if (event.type === "keydown" ? event.key === "Escape" : !menu.contains(event.target)) menu.open = false;
      }
    };
    addEventListener("click", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("click", close);
      removeEventListener("keydown", close);
    };
  }, []);
}
