// Publishes a message: a new one, or one that is sent again, as it was or edited.

import { call, topicPath } from "../api.js";
import { commandLine, count } from "../format.js";
import { html, useState } from "../lib.js";
import { refresh } from "../store.js";
import { Button, Confirm, notify } from "../ui.js";

/** What becomes of the text: the words of a template, for the message with this number. */
function filled(text, number) {
  return text.replaceAll("{{i}}", number).replaceAll("{{now}}", new Date().toISOString()).replaceAll("{{uuid}}", () => uuid());
}

/** A random UUID; pages without TLS have no crypto.randomUUID. */
function uuid() {
  const data = crypto.getRandomValues(new Uint8Array(16));
  data[6] = (data[6] & 15) | 64;
  data[8] = (data[8] & 63) | 128;
  const text = Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join("-");
}

const MOST_TIMES = 1000;
/** A longer payload, or headers, are no matter of a command line. */
const MOST_CLI = 2000;

export function PublishDialog({ topic, message, onClose }) {
  const binary = Boolean(message) && message.text === null;
  const [to, setTo] = useState(topic);
  const [key, setKey] = useState(message?.keyBytes ? "" : (message?.key ?? ""));
  const [text, setText] = useState(message ? (message.text ?? "") : '{\n  "id": "{{uuid}}",\n  "n": {{i}}\n}');
  const [headers, setHeaders] = useState(Object.entries(message?.attributes ?? {}));
  const [delay, setDelay] = useState("");
  const [times, setTimes] = useState("1");
  const target = to.trim();
  const number = Math.min(MOST_TIMES, Math.max(1, Number(times) || 1));
  const template = !message; // what is sent again stays as it was, whatever it contains
  const problem = binary ? "" : jsonProblem(template ? filled(text, 1) : text);
  const row = (index) => ({
    ...(binary ? { payload_base64: message.raw } : { payload: template ? filled(text, index) : text }),
    ...(message?.keyBytes && !key ? { key_base64: message.keyBytes } : key ? { key: template ? filled(key, index) : key } : {}),
    ...(headers.length ? { attributes: Object.fromEntries(headers.filter(([name]) => name)) } : {}),
    ...(Number(delay) > 0 ? { deliver_after_s: Number(delay) } : {}),
  });
  const run = async () => {
    const messages = Array.from({ length: number }, (_, index) => row(index + 1));
    const answer = await call("POST", `${topicPath(target)}/messages`, { body: { messages } });
    const last = answer.receipts.at(-1);
    notify(number === 1 ? `Published at offset ${count(last.offset)} of ${last.topic}` : `${count(number)} messages are published`);
    await refresh();
  };
  const cli = commandLine("danube", "produce", target, key && "-k", key, Number(delay) > 0 && "--deliver-after", Number(delay) > 0 && `${delay}s`,
    number > 1 && "-n", number > 1 && number, "-m", template ? filled(text, 1) : text);
  const setHeader = (index, at, value) => setHeaders(headers.map((pair, each) => (each === index ? (at ? [pair[0], value] : [value, pair[1]]) : pair)));
  return html`<${Confirm} title=${message ? `Send offset ${count(message.offset)} again` : `Publish to ${topic}`} verb=${number > 1 ? `Publish ${count(number)}` : "Publish"}
    cli=${binary || text.length > MOST_CLI || headers.length ? "" : cli} run=${run} onClose=${onClose} disabled=${!/^\/[^/]+\/[^/]+$/.test(target) || Boolean(message?.truncated)}>
    <div class="fields">
      <label class="field grow"><span>Topic</span><input type="text" spellcheck=${false} value=${to} onInput=${(event) => setTo(event.target.value)} /></label>
      <label class="field grow"><span>Key; empty: none</span><input type="text" spellcheck=${false} value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
    </div>
    ${binary
      ? html`<p class="hint">The payload is no text: it is sent again as it is.</p>`
      : html`<label class="field"><span>Payload ${problem ? html`<em class="not-json">${problem}</em>` : html`<em class="is-json">valid JSON</em>`}</span>
          <textarea rows="9" spellcheck=${false} autofocus value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>`}
    ${message?.truncated && html`<p class="hint">This payload was not loaded as a whole, so it cannot be sent again from here.</p>`}
    <fieldset><legend>Headers</legend>
      ${headers.map((pair, index) => html`<div class="fields header-row">
        <input type="text" class="grow" aria-label="Name of the header" placeholder="name" value=${pair[0]} onInput=${(event) => setHeader(index, 0, event.target.value)} />
        <input type="text" class="grow" aria-label="Value of the header" placeholder="value" value=${pair[1]} onInput=${(event) => setHeader(index, 1, event.target.value)} />
        <${Button} kind="plain" icon="trash" label="Remove the header" onClick=${() => setHeaders(headers.filter((_, each) => each !== index))} /></div>`)}
      <${Button} small onClick=${() => setHeaders([...headers, ["", ""]])}>Add a header<//>
    </fieldset>
    <div class="fields">
      <label class="field grow"><span>Deliver after seconds</span><input type="number" min="0" step="any" value=${delay} onInput=${(event) => setDelay(event.target.value)} /></label>
      ${template && html`<label class="field grow"><span>Times, up to ${count(MOST_TIMES)}</span><input type="number" min="1" max=${MOST_TIMES} value=${times} onInput=${(event) => setTimes(event.target.value)} /></label>`}
    </div>
    ${template && html`<p class="muted small">In payload and key, <code>${"{{i}}"}</code> becomes the number of the message, <code>${"{{now}}"}</code> the time, <code>${"{{uuid}}"}</code> a random id.</p>`}
  <//>`;
}

function jsonProblem(text) {
  try {
    JSON.parse(text);
    return "";
  } catch {
    return "no JSON, sent as text"; // which is allowed
  }
}
