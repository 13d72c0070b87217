// Calls of the HTTP API. Errors of the API become Problem, with the sentence and the remedy that the broker gave.

import { EventParser } from "./events.js";

const BASE = new URL("api/v1/", document.baseURI);

export class Problem extends Error {
  constructor({ status = 0, code = "", title = "", detail = "", remedy = "" }) {
    super(detail || title || "the request failed");
    this.status = status;
    this.code = code;
    this.remedy = remedy;
  }
}

let onUnauthenticated = () => {};

/** Sets what happens when the broker asks who the caller is. */
export function whenUnauthenticated(action) {
  onUnauthenticated = action;
}

/** Who the caller is and what it may do, as the broker said last; null: it is not known. */
let who = null;
const watchers = new Set();

export const whoIs = () => who;

/** Calls `action` when that has changed; returns what ends it. */
export function watchWho(action) {
  watchers.add(action);
  return () => watchers.delete(action);
}

function know(state) {
  who = state;
  for (const action of watchers) action(who);
  return who;
}

/** Asks who the caller is; null if the broker knows no proof of it. The answer has the CSRF token of the session. */
export async function askWho() {
  try {
    return know(await call("GET", "session"));
  } catch (error) {
    if (error.status === 401) return know(null);
    throw error;
  }
}

/** Exchanges a token or an API key for a session, which the browser keeps in a cookie that no script can read. */
export async function logIn(token) {
  return know(await call("POST", "session", { body: { token }, quiet: true }));
}

export async function logOut() {
  await call("DELETE", "session");
  know(null);
}

/** Whether the caller may do something somewhere, by the name of the permission: "ManageTopic". */
export function may(permission) {
  if (!who) return false;
  return !who.secured || who.more || who.grants.some((grant) => grant.permissions.includes(permission));
}

function headersOf(method, extra) {
  const csrf = method !== "GET" && who?.csrf ? { "Danube-CSRF": who.csrf } : {};
  return { Accept: "application/json", "Danube-Console": "1", ...csrf, ...extra };
}

/** The part of a URL that names a topic: `/shop/orders` -> `topics/shop/orders`. */
export function topicPath(topic) {
  return `topics/${topic.replace(/^\//, "").split("/").map(encodeURIComponent).join("/")}`;
}

export function subscriptionPath(topic, subscription) {
  return `${topicPath(topic)}/subscriptions/${encodeURIComponent(subscription)}`;
}

function urlOf(path, query) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function problemOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new Problem({ ...body, status: response.status });
  } catch {
    return new Problem({ status: response.status, detail: `the broker answered ${response.status} ${response.statusText}` });
  }
}

/** One call; resolves to the parsed body (null without one), rejects with Problem. With `quiet` a 401 asks for no login. */
export async function call(method, path, options = {}) {
  const text = await (await answered(method, path, options)).text();
  return text ? JSON.parse(text) : null;
}

/** The response of a call, whose body was not read yet; rejects with Problem. */
async function answered(method, path, options) {
  const response = await send(method, path, options);
  if (response.ok) return response;
  const problem = await problemOf(response);
  // Another tab has logged in, so that the session, and its CSRF token, are others: learn them, and try once more.
  if (problem.code === "csrf" && !options.again && (await askWho())) return answered(method, path, { ...options, again: true });
  if (problem.status === 401 && !options.quiet) onUnauthenticated();
  throw problem;
}

async function send(method, path, { query, body, headers, signal }) {
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  try {
    return await fetch(urlOf(path, query), {
      method,
      signal,
      credentials: "same-origin",
      headers: headersOf(method, { ...type, ...headers }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "unreachable", detail: "the broker does not answer", remedy: "check that it runs: danube info" });
  }
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body = {}, options = {}) => call("POST", path, { ...options, body });

/** The rows of a list: the named field of an answer. */
export function rowsOf(answer, name) {
  return answer?.items ?? answer?.[name] ?? [];
}

/** All rows of a list that comes in pages; at most `most`. */
export async function all(path, name, query = {}, { most = 20_000, signal } = {}) {
  const rows = [];
  let cursor;
  do {
    const answer = await get(path, { limit: 1000, ...query, cursor }, signal);
    rows.push(...rowsOf(answer, name));
    cursor = answer?.next ?? "";
  } while (cursor && rows.length < most);
  return rows;
}

/**
 * Follows a stream of events until `signal` aborts, and connects again after a loss where it was: with the id of the last
 * event. `onEvents` gets the events of each piece, `onState` "open" or the Problem that made it wait.
 */
export async function follow(path, query, { signal, onEvents, onState = () => {}, lastId = "" }) {
  let last = lastId;
  let pause = 500;
  while (!signal.aborted) {
    try {
      const headers = headersOf("GET", { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) });
      const response = await fetch(urlOf(path, query), { signal, headers, credentials: "same-origin" });
      if (!response.ok) throw await problemOf(response);
      onState("open");
      pause = 500;
      const parser = new EventParser();
      const decoder = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = parser.feed(decoder.decode(value, { stream: true }));
        if (parser.lastId) last = parser.lastId;
        if (events.length) onEvents(events, last);
      }
    } catch (error) {
      if (signal.aborted) return;
      const problem = error instanceof Problem ? error : new Problem({ detail: "the connection to the broker was lost" });
      if (problem.status === 401) onUnauthenticated();
      onState(problem);
      if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 10_000);
  }
}

/** Posts a body and reads the events of the answer until it ends; rejects with Problem, or AbortError once `signal` aborts. */
export async function stream(path, query, body, { signal, onEvents }) {
  const response = await answered("POST", path, { query, body, signal, headers: { Accept: "text/event-stream" } });
  const [parser, decoder, reader] = [new EventParser(), new TextDecoder(), response.body.getReader()];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = parser.feed(decoder.decode(value, { stream: true }));
    if (events.length) onEvents(events);
  }
}
