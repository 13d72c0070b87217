// Messages as the browser shows them: text, JSON, bytes. Pure.

const strict = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();

/** The bytes of base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

/** Bytes as base64. */
export function toBase64(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode(...data.subarray(at, at + 32768));
  return btoa(text);
}

/**
 * A message of the API, for pages: `id` names it in its topic, `text` is null if the payload is not UTF-8, and `json`
 * is parsed when it is first wanted.
 */
export class Shown {
  constructor(row) {
    this.topic = row.topic;
    this.partition = Number(row.partition);
    this.offset = String(row.offset);
    this.number = Number(row.offset);
    this.id = `${this.partition}:${this.offset}`;
    this.keyBytes = row.key_base64 ?? null;
    this.key = row.key ?? (this.keyBytes === null ? null : `base64:${this.keyBytes}`);
    this.attributes = row.attributes ?? {};
    this.producer = row.producer ?? "";
    this.publishedMs = Math.floor(Number(row.publish_time_us) / 1000);
    this.appendedMs = Math.floor(Number(row.append_time_us) / 1000);
    this.binary = row.payload === null;
    this.raw = row.payload ?? row.payload_base64 ?? "";
    this.truncated = Boolean(row.truncated);
    this.size = Number(row.size_bytes);
  }

  /** The payload as text; null if it is not UTF-8. */
  get text() {
    if (!this.binary) return this.raw;
    if (this._text === undefined) {
      try {
        this._text = strict.decode(this.bytes);
      } catch {
        this._text = null; // it is not UTF-8, which is what null says
      }
    }
    return this._text;
  }

  get bytes() {
    this._bytes ??= this.binary ? fromBase64(this.raw) : encoder.encode(this.raw);
    return this._bytes;
  }

  /** The parsed payload; undefined if it is not JSON. */
  get json() {
    if (!this._parsed) {
      this._parsed = true;
      const text = this.text;
      if (text !== null && /^\s*[[{"\-\dtfn]/.test(text)) {
        try {
          this._json = JSON.parse(text);
        } catch {
          this._json = undefined; // it is not JSON, which is what undefined says
        }
      }
    }
    return this._json;
  }

  /** The first characters of the payload in one line, for a row of a table. */
  get preview() {
    this._preview ??= this.text === null ? `${hexOf(this.bytes.subarray(0, 24))} …` : visible(this.text.slice(0, 240));
    return this._preview;
  }

  /** The fields of an exported line, as `danube read -o json` prints them. */
  exported() {
    const row = { topic: this.topic, partition: this.partition, offset: this.number, key: this.keyBytes ?? this.key };
    if (this.keyBytes !== null) row.key_encoding = "base64";
    row.payload = this.raw;
    if (this.binary) row.encoding = "base64";
    if (this.truncated) row.truncated = true;
    row.publish_time = this.publishedMs ? new Date(this.publishedMs).toISOString() : null;
    row.producer = this.producer;
    row.attributes = this.attributes;
    return row;
  }
}

// Controls, and the characters that change the direction of text, which could disguise what a row says.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Text with its invisible characters shown as escapes, in one line. */
export function visible(text) {
  return text.replace(/[\t\r\n]+/g, " ").replace(HIDDEN, escape);
}

/** As `visible`, with its lines kept. */
export function visibleLines(text) {
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, escape);
}

function escape(character) {
  return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

export function hexOf(data) {
  return Array.from(data, hex).join(" ");
}

/** The lines of a hex dump: offset, 16 bytes, and their ASCII characters. */
export function hexDump(data, most = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const part = data.subarray(at, Math.min(at + 16, most));
    const ascii = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    const left = hexOf(part.subarray(0, 8)).padEnd(23);
    const right = hexOf(part.subarray(8)).padEnd(23);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii}`);
  }
  return lines.join("\n");
}

/** The value at a path such as `user.name` or `items[0].price`; undefined if there is none. */
export function valueAt(json, path) {
  let value = json;
  for (const step of path.match(/[^.[\]]+/g) ?? []) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, step)) return undefined;
    value = value[step];
  }
  return value;
}

/** The paths of scalar fields in some messages, in their order, to be offered as columns. */
export function fieldsOf(messages, most = 40) {
  const seen = new Set();
  for (const message of messages.slice(0, 50)) collect(message.json, "", 0, seen);
  return [...seen].slice(0, most);
}

function collect(value, path, depth, seen) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    if (path && seen.size < 400) seen.add(path);
    return;
  }
  if (depth >= 4) return;
  for (const [name, each] of Object.entries(value).slice(0, 60)) {
    if (/^[^.[\]]+$/.test(name)) collect(each, path ? `${path}.${name}` : name, depth + 1, seen);
  }
}
