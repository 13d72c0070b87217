// Filters of messages, as the search of the broker reads them. Pure, and without eval: an expression becomes closures.
//
//   key == "42"            key ^= "eu-"             header.type ~ "order"      text ~~ "Timeout"
//   value.user == "ada" and value.total > 10        not value.items[0].sku     partition in (1, 2) or offset >= 1000
//
// Operators: == != < <= > >= (numbers, or text), ~ contains, ~~ contains in any case, !~ does not contain, ^= begins with,
// $= ends with, in (a, b). A field alone asks whether it is there. Words without an operator are looked for in the key, the
// headers and the payload, in any case.

const TEXT = /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/sy;
const OPERATOR = /==|!=|<=|>=|\^=|\$=|!~|~~|~|<|>|=/y;
const WORD = /[^\s()=!<>~^$"',]+/y;
const START = /headers?(?=[.[])|value(?=[.[])/y;
const STEP = /\.([^\s()=!<>~^$"',.[\]]+)|\[(\d{1,9})\]|\[\s*("(?:[^"\\]|\\.)*")\s*\]/sy;
const NAME = /\.([^\s()=!<>~^$"',[\]]+)|\[\s*("(?:[^"\\]|\\.)*")\s*\]/sy;
const NUMBER = /^[ \t\r\n]*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[ \t\r\n]*$/;
const FIELDS = new Set(["key", "text", "payload", "value", "producer", "partition", "offset", "size", "time"]);
const KEYWORDS = new Set(["and", "or", "not", "in"]);
const MOST_DEEP = 50;

/** A filter cannot be read; `position` is that of the character at which it stops making sense. */
export class FilterError extends Error {
  constructor(message, position = 0) {
    super(message);
    this.position = position;
  }
}

/** Returns a predicate of messages for an expression; null if it is empty. Throws FilterError. */
export function compile(expression) {
  if (!expression.trim()) return null;
  const tokens = tokenize(expression);
  if (tokens.slice(0, -1).every((token) => token.kind === "word")) return contains(expression.trim());
  const parser = new Parser(tokens);
  const predicate = parser.either();
  if (parser.token.kind !== "end") throw new FilterError(`unexpected ${show(parser.token)}; join conditions with and, or`, parser.token.at);
  return predicate;
}

/** The part of an expression around an error, and how many characters of it are before the error. */
export function pointed(expression, position) {
  const start = Math.max(0, position - 60);
  return { text: expression.slice(start, position + 20).replace(/\s/g, " "), before: position - start };
}

function unquoted(text) {
  return text.slice(1, -1).replace(/\\(.)/gs, "$1");
}

function matched(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function tokenize(text) {
  const tokens = [];
  let at = 0;
  for (;;) {
    at = matched(/\s*/y, text, at)[0].length + at;
    if (at >= text.length) break;
    let match;
    if (/[(),]/.test(text[at])) {
      tokens.push({ kind: text[at] === "," ? "comma" : "bracket", text: text[at], at });
      at += 1;
    } else if (/["']/.test(text[at])) {
      match = matched(TEXT, text, at);
      if (!match) throw new FilterError(`the text in quotes does not end; close it with ${text[at]}`, at);
      tokens.push({ kind: "text", text: unquoted(match[0]), at });
      at += match[0].length;
    } else if ((match = matched(OPERATOR, text, at))) {
      tokens.push({ kind: "operator", text: match[0] === "=" ? "==" : match[0], at });
      at += match[0].length;
    } else if ((match = matched(START, text, at))) {
      const field = match[0] === "value" ? "value" : "header";
      const { steps, end } = pathAt(text, at + match[0].length, field);
      tokens.push({ kind: "field", text: text.slice(at, end), at, field, steps });
      at = end;
    } else if ((match = matched(WORD, text, at))) {
      tokens.push({ kind: "word", text: match[0], at, field: FIELDS.has(match[0]) ? match[0] : undefined, steps: [] });
      at += match[0].length;
    } else throw new FilterError(`${JSON.stringify(text[at])} has no meaning here; put text in quotes`, at);
  }
  tokens.push({ kind: "end", text: "", at: text.length });
  return tokens;
}

function pathAt(text, begin, field) {
  const steps = [];
  let end = begin;
  for (let match; (match = matched(field === "value" ? STEP : NAME, text, end)); ) {
    const given = match.at(-1);
    steps.push(given === undefined ? (match[1] ?? match[2]) : unquoted(given));
    end += match[0].length;
    if (field === "header") break;
  }
  if (!steps.length || ".[]".includes(text[end] ?? " ")) throw new FilterError(`this is no path into ${field}; write ${field}.name or ${field}["any name"]`, end);
  return { steps, end };
}

function show(token) {
  return token.kind === "end" ? "end" : JSON.stringify(token.text);
}

/** A predicate that looks for a text in key, headers and payload, in any case. */
function contains(needle) {
  const wanted = needle.toLowerCase();
  const has = (text) => text !== null && text !== undefined && String(text).toLowerCase().includes(wanted);
  return (message) =>
    (message.keyBytes === null && has(message.key)) || has(message.text) || Object.entries(message.attributes).some(([name, value]) => has(name) || has(value));
}

class Parser {
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
    this.depth = 0;
  }

  get token() {
    return this.tokens[this.at];
  }

  fail(message, at = this.token.at) {
    throw new FilterError(message, at);
  }

  is(kind, text) {
    const found = this.token.kind === kind && (kind === "word" ? this.token.text.toLowerCase() : this.token.text) === text;
    if (found) this.at += 1;
    return found;
  }

  either() {
    let left = this.both();
    while (this.is("word", "or")) {
      const [first, second] = [left, this.both()];
      left = (message) => first(message) || second(message);
    }
    return left;
  }

  both() {
    let left = this.single();
    while (this.is("word", "and")) {
      const [first, second] = [left, this.single()];
      left = (message) => first(message) && second(message);
    }
    return left;
  }

  single() {
    const begin = this.token.at;
    if (++this.depth > MOST_DEEP) this.fail(`it is nested more than ${MOST_DEEP} deep; use fewer brackets`);
    let found;
    if (this.is("word", "not")) {
      const inner = this.single();
      found = (message) => !inner(message);
    } else if (this.is("bracket", "(")) {
      found = this.either();
      if (!this.is("bracket", ")")) this.fail(`a bracket is not closed; close the one at character ${begin + 1} with )`);
    } else found = this.condition();
    this.depth -= 1;
    return found;
  }

  condition() {
    const token = this.token;
    if (token.kind === "end") this.fail("a condition is missing at the end");
    if (token.kind === "text") {
      this.at += 1;
      return contains(token.text);
    }
    if (!token.field) this.fail(`${show(token)} is not a field; fields are key, header.NAME, text, value.PATH, partition, offset, time, size, producer`);
    this.at += 1;
    const read = reader(token);
    if (this.is("word", "in")) {
      const tests = this.values(token.field).map((wanted) => comparison(token.field, "==", wanted));
      return (message) => tests.some((test) => test(read(message)));
    }
    if (this.token.kind !== "operator") return (message) => ![undefined, null, false, ""].includes(read(message));
    const operator = this.token.text;
    this.at += 1;
    const test = comparison(token.field, operator, this.value(token.field, operator));
    return (message) => test(read(message));
  }

  values(field) {
    if (!this.is("bracket", "(")) this.fail("the values of in are missing; write in (1, 2)");
    const found = [this.value(field, "in")];
    while (this.is("comma", ",")) found.push(this.value(field, "in"));
    if (!this.is("bracket", ")")) this.fail("the values of in do not end; separate them with commas, and close the bracket");
    return found;
  }

  value(field, operator) {
    const token = this.token;
    const bare = token.kind === "word" || token.kind === "field";
    if (token.kind !== "text" && (!bare || KEYWORDS.has(token.text.toLowerCase()))) this.fail(`a value is missing after ${operator}; write a number, or a text in quotes`);
    this.at += 1;
    let number = numberOf(token.text);
    if (field === "time" && number === null) {
      number = momentOf(token.text);
      if (number === null && !/[~^$]/.test(operator)) this.fail(`${show(token)} is no time; write one such as 2026-01-31T12:00:00Z`, token.at);
    }
    if (["offset", "partition", "size"].includes(field) && number === null) this.fail(`${show(token)} is no number; compare ${field} with one`, token.at);
    return { text: token.text, bare, number };
  }
}

function numberOf(text) {
  const number = NUMBER.test(text) ? Number(text) : null;
  return Number.isFinite(number) ? number : null;
}

/** A time as microseconds since the epoch; UTC, if it has no zone. */
function momentOf(text) {
  const ms = Date.parse(/T.*(Z|[+-]\d\d:?\d\d)$/.test(text) || !text.includes("T") ? text : `${text}Z`);
  return Number.isNaN(ms) ? null : ms * 1000;
}

function reader({ field, steps }) {
  if (field === "key") return (message) => message.key ?? undefined;
  if (field === "text" || field === "payload") return (message) => message.text ?? undefined;
  if (field === "offset") return (message) => message.number;
  if (field === "time") return (message) => message.appendedMs * 1000;
  if (field === "header") return (message) => (Object.hasOwn(message.attributes, steps[0]) ? message.attributes[steps[0]] : undefined);
  if (field !== "value") return (message) => message[field];
  return (message) => {
    let value = message.json;
    for (const step of steps) {
      const has = value !== null && typeof value === "object" && Object.hasOwn(value, step) && !(Array.isArray(value) && step === "length");
      if (!has) return undefined;
      value = value[step];
    }
    return value;
  };
}

function comparison(field, operator, { text: wanted, bare, number }) {
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const equal = (value) => {
    if (value === null) return bare && wanted === "null";
    if (typeof value === "number") return number !== null && value === number;
    return text(value) === wanted;
  };
  const order = (value) => {
    const given = typeof value === "number" ? value : typeof value === "string" ? numberOf(value) : null;
    if (number !== null && given !== null) return given - number;
    return text(value) < wanted ? -1 : text(value) > wanted ? 1 : 0;
  };
  const lower = wanted.toLowerCase();
  const test = {
    "==": equal,
    "!=": (value) => !equal(value),
    "<": (value) => order(value) < 0,
    "<=": (value) => order(value) <= 0,
    ">": (value) => order(value) > 0,
    ">=": (value) => order(value) >= 0,
    "~": (value) => text(value).includes(wanted),
    "~~": (value) => text(value).toLowerCase().includes(lower),
    "!~": (value) => !text(value).includes(wanted),
    "^=": (value) => text(value).startsWith(wanted),
    "$=": (value) => text(value).endsWith(wanted),
  }[operator];
  const negative = operator === "!=" || operator === "!~";
  const knowsNull = operator === "==" || operator === "!=";
  return (value) => (value === undefined || (value === null && !knowsNull) ? negative : test(value));
}
