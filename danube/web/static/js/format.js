// Numbers, sizes, durations and times as text. Pure.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A count with separators: 12,345. Also of 64-bit numbers that arrive as text. */
export function count(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string" && /^-?\d+$/.test(value)) return whole.format(BigInt(value));
  return Number.isFinite(Number(value)) ? whole.format(value) : "–";
}

/** The number of messages of a topic or partition: of its offsets, those that are in no declared gap. */
export function messagesOf(info) {
  return Number(info.end_offset) - Number(info.start_offset) - Number(info.missing_messages ?? 0);
}

/** A count in few characters: 12.3k. */
export function shortCount(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return "–";
  if (size < 1000) return String(size < 10 && size % 1 ? Math.round(value * 10) / 10 : Math.round(value));
  const step = size < 1e6 ? [1e3, "k"] : size < 1e9 ? [1e6, "M"] : [1e9, "G"];
  const scaled = value / step[0];
  return (Math.abs(scaled) < 100 ? Math.round(scaled * 10) / 10 : Math.round(scaled)) + step[1];
}

/** A size in binary units: 1.5 MiB. */
export function bytes(value) {
  if (value === null || value === undefined || !Number.isFinite(Number(value))) return "–";
  let size = Number(value);
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(size) < 100 ? (Math.round(size * 10) / 10).toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

/** A duration in its two largest units: 3 min 5 s. */
export function duration(seconds) {
  const s = Number(seconds);
  if (!Number.isFinite(s)) return "–";
  if (s < 0.001) return s > 0 ? `${Math.round(s * 1e6)} µs` : "0 s";
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${s < 10 ? Math.round(s * 10) / 10 : Math.round(s)} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => s >= size);
  const major = Math.floor(s / parts[first][0]);
  const minor = Math.floor((s % parts[first][0]) / parts[first + 1][0]);
  return `${major} ${parts[first][1]}${minor ? ` ${minor} ${parts[first + 1][1]}` : ""}`;
}

/** A short duration with the digits that matter: 0.35 ms, 4.2 ms, 120 ms. */
export function milliseconds(seconds) {
  const ms = Number(seconds) * 1000;
  if (!Number.isFinite(ms)) return "–";
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms < 1 ? ms.toFixed(2) : ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

const two = (number) => String(number).padStart(2, "0");

/** Milliseconds since the epoch as local time: 2026-01-31 12:30:05.123. */
export function time(ms, { millis = true } = {}) {
  if (!ms) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return "–";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${clock}${millis ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

/** As `time`, without the date if it is today. */
export function shortTime(ms) {
  const text = time(ms);
  return text.startsWith(time(Date.now()).slice(0, 11)) ? text.slice(11) : text;
}

/** "1 topic", "2 topics". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${Number(number) === 1 ? one : many}`;
}

/** A word of a shell's command line, quoted where needed. */
export function quoted(word) {
  const text = String(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A command line: its words quoted where needed; those that are undefined, null, false or empty are left out. */
export function commandLine(...words) {
  return words.filter((word) => ![undefined, null, false, ""].includes(word)).map(quoted).join(" ");
}

/** An identifier as words: "in_flight" -> "in flight". */
export function words(name) {
  return String(name).replaceAll("_", " ").replaceAll("-", " ");
}

/** JSON of one line in several, character by character, so that numbers stay as they were written; other texts as they are. */
export function inLines(text) {
  if (!/^\s*[[{]/.test(text) || text.trim().includes("\n")) return text;
  let lines = "";
  let depth = 0;
  let opened = false;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    if (token === "{" || token === "[") lines += `${token}\n${"  ".repeat(++depth)}`;
    else if (token === "}" || token === "]") {
      depth = Math.max(0, depth - 1);
      lines = `${lines.trimEnd()}${opened ? "" : `\n${"  ".repeat(depth)}`}${token}`;
    }
    else if (token === ",") lines += `,\n${"  ".repeat(depth)}`;
    else lines += token === ":" ? ": " : token;
    opened = token === "{" || token === "[";
  }
  return lines;
}
