// Dialogs of the frame: search, help, login.

import { logIn, may, whoIs } from "./api.js";
import { href, subscriptionHref, topicHref } from "./hooks.js";
import { html, useState } from "./lib.js";
import { Button, Dialog, Empty, ProblemBox } from "./ui.js";

const MOST_HITS = 12;

/** What a search can open: topics, subscriptions, pages. */
function targets(figures) {
  const pages = ["topics", "subscriptions", "storage", "jobs", "connections", "configuration", "cluster", ...(whoIs()?.secured && may("ManageSecurity") ? ["security"] : [])];
  return [
    ...(figures.topics ?? []).map((row) => ({ kind: "topic", text: row.topic, to: topicHref(row.topic) })),
    ...(figures.subscriptions ?? []).map((row) => ({
      kind: "subscription",
      text: `${row.subscription} of ${row.topic}`,
      to: subscriptionHref(row.topic, row.subscription),
    })),
    ...pages.map((name) => ({ kind: "page", text: name, to: href(name) })),
  ];
}

export function SearchDialog({ figures, onClose }) {
  const [word, setWord] = useState("");
  const [chosen, setChosen] = useState(0);
  const wanted = word.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = targets(figures)
    .filter((target) => wanted.every((each) => target.text.toLowerCase().includes(each)))
    .slice(0, MOST_HITS);
  const open = (target) => {
    location.hash = target.to;
    onClose();
  };
  const pressed = (event) => {
    if (event.key === "Enter" && hits[chosen]) open(hits[chosen]);
    else if (event.key === "ArrowDown") setChosen(Math.min(chosen + 1, hits.length - 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(chosen - 1, 0));
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title="Search" onClose=${onClose}>
    <input type="text" autofocus autocomplete="off" spellcheck=${false} placeholder="Name of a topic, a subscription or a page" aria-label="Search topics, subscriptions and pages"
      role="combobox" aria-expanded="true" aria-controls="hits" aria-activedescendant=${hits.length ? `hit-${chosen}` : undefined}
      value=${word} onInput=${(event) => (setWord(event.target.value), setChosen(0))} onKeyDown=${pressed} />
    ${hits.length === 0 && html`<${Empty} title="Nothing has this name" />`}
    <ul class="hits" id="hits" role="listbox" aria-label="Found">${hits.map(
      (target, index) => html`<li id=${`hit-${index}`} role="option" aria-selected=${index === chosen} onClick=${() => open(target)}>
        <span>${target.text}</span><span class="tag">${target.kind}</span></li>`,
    )}</ul>
  <//>`;
}

const KEYS = [
  ["/", "search topics, subscriptions and pages"],
  ["?", "this help"],
  ["Esc", "close a dialog or a message"],
  ["p", "messages: pause or continue the live tail"],
  ["j k", "messages: the next or the previous one"],
];

export function HelpDialog({ onClose }) {
  return html`<${Dialog} title="Help" onClose=${onClose} wide>
    <h3>Keys</h3>
    <dl class="facts">${KEYS.map(([key, what]) => html`<dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${what}</dd>`)}</dl>
    <h3>Filters of messages</h3>
    <p>Words without an operator are looked for in keys, headers and payloads. With operators:</p>
    <pre class="sample">${`key == "42"                     key ^= "eu-"             (begins with)
header.type ~ "order"           text !~ "timeout"        (contains, does not)
value.user.name == "ada" and value.total > 10
not (value.items[0].sku $= "-x" or partition == 2)`}</pre>
    <p class="muted">A filter looks at the messages that were loaded, and says how many those are.</p>
    <h3>Command line</h3>
    <p>Each action shows the command that does the same, ready to be copied. Lists can be saved as CSV, messages as JSON lines, too.</p>
  <//>`;
}

export function LoginDialog({ onClose, onDone }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const enter = async (event) => {
    event.preventDefault();
    if (!token.trim() || busy) return;
    setBusy(true);
    try {
      await logIn(token.trim());
      onDone();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  const footer = html`<${Button} kind="primary" disabled=${!token.trim() || busy} onClick=${enter}>${busy ? "Logging in …" : "Log in"}<//>`;
  return html`<${Dialog} title="Log in" onClose=${onClose} footer=${footer}>
    <p>The broker asks who you are. It exchanges a token or an API key for a session, which ends when you log out, close the browser,
      do nothing for a while, or when the token expires or is revoked. The token itself is not kept in the browser.</p>
    <form onSubmit=${enter}><label class="field"><span>Token or API key</span>
      <input type="password" autofocus autocomplete="off" value=${token} onInput=${(event) => setToken(event.target.value)} /></label></form>
    <${ProblemBox} error=${error} what="The login was refused" />
  <//>`;
}
