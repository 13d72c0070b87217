// Parts of pages: buttons, problems, dialogs, tabs, command lines, notices.

import { html, useEffect, useRef, useState } from "./lib.js";

const PATHS = {
  overview: "M2 9.5h3l2-6 3.5 9 2-4.5H14",
  topics: "M2.5 4h11M2.5 8h11M2.5 12h7",
  subscriptions: "M3 3v4.5a3 3 0 0 0 3 3h7M10.5 8l2.5 2.5-2.5 2.5",
  schemas: "M5.5 2.5c-2 0-2 1-2 2.5s0 3-1.5 3c1.5 0 1.5 1.5 1.5 3s0 2.5 2 2.5M10.5 2.5c2 0 2 1 2 2.5s0 3 1.5 3c-1.5 0-1.5 1.5-1.5 3s0 2.5-2 2.5",
  storage: "M2.5 4c0-1 2.5-1.7 5.5-1.7s5.5.7 5.5 1.7v8c0 1-2.5 1.7-5.5 1.7S2.5 13 2.5 12zM2.5 4c0 1 2.5 1.7 5.5 1.7S13.5 5 13.5 4M2.5 8c0 1 2.5 1.7 5.5 1.7S13.5 9 13.5 8",
  jobs: "M2.5 5.5h11v7.5h-11zM6 5.5v-2h4v2M2.5 9h11",
  connections: "M6.5 9.5l3-3M5 7.5L3.3 9.2a2.5 2.5 0 0 0 3.5 3.5L8.5 11M7.5 5l1.7-1.7a2.5 2.5 0 0 1 3.5 3.5L11 8.5",
  configuration: "M2.5 4.5h6M12 4.5h1.5M2.5 11.5H4M7.5 11.5h6M10.2 2.8a1.7 1.7 0 1 0 .01 0M5.7 9.8a1.7 1.7 0 1 0 .01 0",
  cluster: "M8 2.2a1.8 1.8 0 1 0 .01 0M3.8 10.2a1.8 1.8 0 1 0 .01 0M12.2 10.2a1.8 1.8 0 1 0 .01 0M7 5.5l-2.3 4.7M9 5.5l2.3 4.7M5.7 12h4.6",
  security: "M8 2l5 2v4c0 3-2.2 5-5 6-2.8-1-5-3-5-6V4zM6 8l1.5 1.5L10.2 6.8",
  search: "M7 2.5a4.5 4.5 0 1 0 .01 0M10.3 10.3l3.2 3.2",
  help: "M6 6a2 2 0 1 1 2.8 1.9c-.6.2-.8.6-.8 1.3M8 11.8v.1",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  sun: "M8 5.2a2.8 2.8 0 1 0 .01 0M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13.3 9.8A5.8 5.8 0 0 1 6.2 2.7a5.8 5.8 0 1 0 7.1 7.1z",
  auto: "M8 2.2a5.8 5.8 0 1 0 .01 0zM8 2.2v11.6M10 3v10M12 4.5v7",
  refresh: "M13 8a5 5 0 1 1-1.5-3.6L13 6M13 2.8V6H9.8",
  play: "M5 3.5v9l7-4.5z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  download: "M8 2.5v7.5M5 7.5l3 3 3-3M3 13.5h10",
  send: "M2.5 8L13.5 3l-3 10.5-3-4zM7.5 9.5l6-6.5",
  link: "M6.5 9.5l3-3M5 7.5L3.3 9.2a2.5 2.5 0 0 0 3.5 3.5L8.5 11M7.5 5l1.7-1.7a2.5 2.5 0 0 1 3.5 3.5L11 8.5",
  trash: "M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.6 9h5.8l.6-9",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  back: "M9.5 3.5L5 8l4.5 4.5",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button with an icon; without children it is square, and `label` names it. */
export function Button({ icon, label, children, kind = "", small, ...rest }) {
  const square = children === undefined || children === null;
  return html`<button type="button" class="button ${kind} ${small ? "small" : ""} ${square ? "square" : ""}"
    aria-label=${label} title=${square ? label : undefined} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}
  </button>`;
}

/** What went wrong, with the remedy of the broker, and a way to try again. */
export function ProblemBox({ error, retry, what = "This could not be done" }) {
  if (!error) return null;
  const title = error.status === 403 ? "You may not see this" : error.status === 404 ? "It does not exist" : what;
  return html`<div class="problem" role="alert">
    <p class="title">${title}</p>
    <p>${error.message}${error.remedy ? `; ${error.remedy}` : ""}</p>
    ${error.code && html`<p class="small muted">${error.code}${error.status ? ` · ${error.status}` : ""}</p>`}
    ${retry && html`<${Button} small icon="refresh" onClick=${retry}>Try again<//>`}
  </div>`;
}

/** A page or a part of it that has nothing to show: says why, and what to do. */
export function Empty({ title, children, cli }) {
  return html`<div class="empty"><p class="title">${title}</p>${children && html`<p>${children}</p>`}${cli && html`<${Cli} line=${cli} />`}</div>`;
}

/** What shows data while it loads, when it failed, and when it is there. */
export function Loaded({ state, what, children }) {
  if (state.data === undefined) {
    if (state.error) return html`<${ProblemBox} error=${state.error} retry=${state.reload} what=${what} />`;
    return html`<p class="loading" role="status">Loading …</p>`;
  }
  return html`${state.error && html`<${ProblemBox} error=${state.error} retry=${state.reload} what="These figures are not up to date" />`}
    ${children(state.data)}`;
}

/** A command line that does the same, with a button that copies it. */
export function Cli({ line }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(line);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<div class="cli">
    <code tabindex="0">${line}</code>
    <${Button} small kind="plain" icon=${copied ? undefined : "copy"} label="Copy the command" onClick=${copy}>${copied ? "Copied" : null}<//>
  </div>`;
}

/** Copies text, also where the clipboard needs a secure page. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // pages without TLS have no clipboard
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** A dialog over the page; Escape and the cross close it. */
export function Dialog({ title, onClose, children, footer, wide }) {
  const ref = useRef();
  const gone = useRef(false);
  useEffect(() => {
    const element = ref.current;
    if (!element.open) element.showModal();
    return () => {
      gone.current = true; // the event `close` comes later, when another dialog may be in its place
      if (element.open) element.close();
    };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" onClose=${() => gone.current || onClose()}
    onCancel=${(event) => event.target === ref.current && onClose()}>
    <div class="in">
      <header><h2 id="dialog-title">${title}</h2><${Button} kind="plain" icon="close" label="Close" onClick=${onClose} /></header>
      <div class="content">${children}</div>
      ${footer && html`<footer>${footer}</footer>`}
    </div>
  </dialog>`;
}

/**
 * Asks before something is done, and shows its command line. With `typed` that word has to be typed first. `run` does it;
 * the dialog stays open with the problem if it fails.
 */
export function Confirm({ title, verb, danger, cli, typed, run, onClose, children, disabled }) {
  const [word, setWord] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const act = async (event) => {
    event?.preventDefault();
    if (busy || disabled || (typed && word !== typed)) return;
    setBusy(true);
    setError(null);
    try {
      await run();
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const footer = html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind=${danger ? "danger solid" : "primary"} disabled=${busy || disabled || (typed && word !== typed)} onClick=${act}>
      ${busy ? "Working …" : verb}<//>`;
  return html`<${Dialog} title=${title} onClose=${onClose} footer=${footer}>
    ${children}
    ${typed && html`<form onSubmit=${act}><label class="field"><span>Type ${typed} to confirm</span>
      <input type="text" autocomplete="off" spellcheck=${false} value=${word} onInput=${(event) => setWord(event.target.value)} /></label></form>`}
    ${cli && html`<div class="field"><span>The same on the command line</span><${Cli} line=${cli} /></div>`}
    <${ProblemBox} error=${error} />
  <//>`;
}

export function Tabs({ tabs, current, label }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(
    (tab) => html`<a href=${tab.href} aria-current=${tab.id === current ? "page" : undefined}>${tab.label}${tab.number !== undefined &&
    html`<span class="number">${tab.number}</span>`}</a>`,
  )}</nav>`;
}

export function Badge({ kind = "", children }) {
  return html`<span class="badge ${kind}">${children}</span>`;
}

/** A bar that shows a share of a whole; `label` names it. */
export function Meter({ value, most, label, warnAt = 0.75, badAt = 0.9 }) {
  const share = most > 0 ? Math.min(1, value / most) : 0;
  const kind = share >= badAt ? "bad" : share >= warnAt ? "warn" : "";
  return html`<span class="meter ${kind}" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${Math.round(share * 100)}><i style=${{ width: `${share ? Math.max(1, share * 100) : 0}%` }}></i></span>`;
}

export function Facts({ rows }) {
  return html`<dl class="facts">${rows.filter(Boolean).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

export function Tile({ label, value, unit, note, kind = "", children }) {
  return html`<div class="tile ${kind}"><p class="label">${label}</p>
    <p class="value">${value}${unit && html` <small>${unit}</small>`}</p>${children}${note && html`<p class="note" title=${typeof note === "string" ? note : undefined}>${note}</p>`}</div>`;
}

export function PageHead({ title, note, children }) {
  useEffect(() => {
    document.title = typeof title === "string" ? `${title} · Danube` : "Danube";
  }, [title]);
  return html`<div class="page-head"><div class="titles"><h1>${title}</h1>${note && html`<p>${note}</p>`}</div>
    ${children && html`<div class="actions">${children}</div>`}</div>`;
}

const listeners = new Set();

/** Shows a sentence in the corner for some seconds. */
export function notify(text, kind = "ok") {
  for (const listener of listeners) listener({ text, kind, id: Math.random() });
}

export function Notices() {
  const [shown, setShown] = useState([]);
  useEffect(() => {
    const add = (notice) => {
      setShown((old) => [...old.slice(-3), notice]);
      setTimeout(() => setShown((old) => old.filter((each) => each !== notice)), 6000);
    };
    listeners.add(add);
    return () => listeners.delete(add);
  }, []);
  return html`<div class="notices" aria-live="polite">${shown.map(
    (notice) => html`<div key=${notice.id} class="notice ${notice.kind}"><p>${notice.text}</p></div>`,
  )}</div>`;
}
