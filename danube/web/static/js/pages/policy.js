// Changes the policy of a subscription: only the fields that differ are sent.

import { call } from "../api.js";
import { commandLine } from "../format.js";
import { html, useState } from "../lib.js";
import { Confirm, notify } from "../ui.js";

const FIELDS = [
  { name: "ack_timeout_s", label: "Ack timeout, s; 0: none", option: "--ack-timeout", unit: "s" },
  { name: "redelivery_delay_s", label: "Pause before a redelivery, s", option: "--redelivery-delay", unit: "s" },
  { name: "max_redelivery_delay_s", label: "Longest pause, s", option: "--max-redelivery-delay", unit: "s" },
  { name: "max_redelivery_count", label: "Failures before it is poison; -1: any", option: "--max-redelivery", unit: "" },
  { name: "max_unacked_messages", label: "Unacknowledged at most; 0: the broker's limit", option: "--max-unacked", unit: "" },
];

export function PolicyDialog({ path, topic, subscription, policy, initial = {}, onClose, onDone }) {
  const [values, setValues] = useState({ ...policy, ...initial });
  const set = (name, value) => setValues({ ...values, [name]: value });
  const changes = Object.fromEntries(
    ["backoff", "poison", "dead_letter_topic", ...FIELDS.map((field) => field.name)].filter((name) => String(values[name]) !== String(policy[name]))
      .map((name) => [name, FIELDS.some((field) => field.name === name) ? Number(values[name]) : values[name]]),
  );
  const options = Object.entries(changes).flatMap(([name, value]) => {
    const field = FIELDS.find((each) => each.name === name);
    if (name === "max_redelivery_count" && value < 0) return ["--max-redelivery", "none"];
    if (name === "ack_timeout_s" && value === 0) return ["--ack-timeout", "none"];
    return [field?.option ?? `--${name.replaceAll("_", "-")}`, `${value}${field?.unit ?? ""}`];
  });
  const run = async () => {
    await call("PATCH", `${path}/policy`, { body: changes });
    notify(`The policy of ${subscription} is changed`);
    onDone();
  };
  return html`<${Confirm} title=${`Policy of ${subscription}`} verb="Change it" run=${run} onClose=${onClose} disabled=${Object.keys(changes).length === 0}
    cli=${commandLine("danube", "subscriptions", "policy", topic, subscription, ...options)}>
    <div class="form-grid">
      ${FIELDS.map((field) => html`<label class="field"><span>${field.label}</span><input type="number" step="any" value=${values[field.name]} onInput=${(event) => set(field.name, event.target.value)} /></label>`)}
      <label class="field"><span>Growth of the pause</span><select value=${values.backoff} onChange=${(event) => set("backoff", event.target.value)}>
        <option value="exponential">doubles with each failure</option><option value="fixed">constant</option></select></label>
      <label class="field"><span>A poison message</span><select value=${values.poison} onChange=${(event) => set("poison", event.target.value)}>
        <option value="block">blocks</option><option value="dead_letter">goes to the dead-letter topic</option><option value="drop">counts as acknowledged</option></select></label>
      ${values.poison === "dead_letter" && html`<label class="field"><span>Dead-letter topic; empty: by name</span><input type="text" value=${values.dead_letter_topic} onInput=${(event) => set("dead_letter_topic", event.target.value)} /></label>`}
    </div>
    <p class="muted small">A change takes effect at once in all partitions, also for messages in flight.</p>
  <//>`;
}
