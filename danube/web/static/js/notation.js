// Values of topic policies in the notation of the command line: 7d, 10MiB, 100/s,1MiB/s. Pure.

const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
const TIMES = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1], ["ms", 0.001]];

function number(text, units, what) {
  const match = /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$/.exec(text.trim());
  const unit = match && units.find(([name]) => name.toLowerCase() === match[2].toLowerCase());
  if (!unit) throw new Error(`${JSON.stringify(text)} is no ${what}; write a number with a unit: ${units.map(([name]) => `1${name}`).join(", ")}`);
  return Number(match[1]) * unit[1];
}

const size = (text) => Math.round(number(text, SIZES, "size"));
const seconds = (text) => (text.trim() === "none" ? 0 : number(text, TIMES, "time"));

function units(value, all) {
  const [name, factor] = all.find(([, each]) => value >= each && value % each === 0) ?? all.find(([, each]) => each === 1);
  return `${value / factor}${name}`;
}

const sizeText = (value) => units(value, SIZES);
const timeText = (value) => (value ? units(value, TIMES.slice(0, 4)) : "none");

const parts = (text) => (text.trim() === "none" ? [] : text.split(",").map((each) => each.trim()));

function rate(text) {
  const found = {};
  for (const part of parts(text)) {
    const match = /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\/\s*s$/.exec(part);
    if (!match) throw new Error(`${JSON.stringify(part)} is no rate; write messages or bytes a second, such as 100/s or 10MiB/s`);
    if (match[2]) found.bytes_per_s = size(match[1] + match[2]);
    else found.messages_per_s = Number(match[1]);
  }
  return found;
}

const rateText = (value) =>
  [value.messages_per_s && `${value.messages_per_s}/s`, value.bytes_per_s && `${sizeText(value.bytes_per_s)}/s`].filter(Boolean).join(",") || "none";

function retention(text) {
  const found = {};
  for (const part of parts(text)) {
    if (part === "acknowledged") found.acknowledged = true;
    else if (/b$/i.test(part)) found.max_bytes = size(part);
    else found.max_age_s = seconds(part);
  }
  return found;
}

const retentionText = (value) =>
  [value.max_age_s && timeText(value.max_age_s), value.max_bytes && sizeText(value.max_bytes), value.acknowledged && "acknowledged"].filter(Boolean).join(",") || "none";

function count(text) {
  if (!/^\d{1,15}$/.test(text.trim())) throw new Error(`${JSON.stringify(text)} is no number`);
  return Number(text);
}

const oneOf = (...known) => ({
  parse(text) {
    if (!known.includes(text.trim())) throw new Error(`${JSON.stringify(text)} is none of ${known.join(", ")}`);
    return text.trim();
  },
  show: String,
  hint: known.join(", "),
});

const COUNT = { parse: count, show: String, hint: "a number" };

/** All policies of topics, in the order in which they are shown: what they mean, and how values are written. */
export const POLICIES = {
  retention: { parse: retention, show: retentionText, hint: "7d, 10GiB, acknowledged, several with commas, or none", means: "when messages are removed" },
  message_ttl_s: { parse: seconds, show: timeText, hint: "12h, 7d, or none", means: "age at which messages count as acknowledged" },
  publish_rate: { parse: rate, show: rateText, hint: "100/s, 10MiB/s, or both with a comma, or none", means: "of all producers of one partition together" },
  dispatch_rate: { parse: rate, show: rateText, hint: "100/s, 10MiB/s, or both with a comma, or none", means: "of each subscription without one of its own" },
  max_message_bytes: { parse: size, show: sizeText, hint: "64KiB, 1MiB", means: "the largest message" },
  max_producers: { ...COUNT, means: "connected to one partition" },
  max_consumers: { ...COUNT, means: "connected to one partition, of all subscriptions" },
  max_consumers_per_subscription: { ...COUNT, means: "connected to one partition" },
  max_subscriptions: { ...COUNT, means: "of one partition" },
  schema_validation: { ...oneOf("none", "warn", "enforce"), means: "whether batches must name a schema of the topic's subject" },
  schema_payloads: { ...oneOf("client", "broker"), means: "who checks that payloads fit their schema, with schema_validation" },
  schema_framing: { ...oneOf("none", "confluent"), means: "whether payloads name their schema in a frame of Confluent's" },
};

/** The name of a policy on the command line. */
export const shortName = (name) => name.replace(/_(s|bytes)$/, "");
