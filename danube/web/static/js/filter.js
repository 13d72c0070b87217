// Filters of messages. Pure, and without eval: an expression becomes closures.
//
//   key == "42"            key ^= "eu-"             header.type ~ "order"      text ~ "timeout"
//   value.user == "ada" and value.total > 10        not value.items[0].sku     partition == 2 or offset >= 1000
//
// Operators: == != < <= > >= (numbers, or text), ~ contains, !~ does not, ^= begins with, $= ends with. A field alone asks
// whether it is there. Words without an operator are looked for in the key, the headers and the payload.

import { valueAt } from "./payload.js";

const TOKEN = /\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(==|!=|<=|>=|\^=|\$=|!~|~|<|>|=|\(|\))|([^\s()=!<>~^$"']+))/y;
const OPERATORS = new Set(["==", "=", "!=", "<", "<=", ">", ">=", "~", "!~", "^=", "$="]);
const FIELD = /^(key|text|payload|value|producer|partition|offset|size|topic|headers?\.[^\s]+|value[.[][^\s]*)$/;

export class FilterError extends Error {}

/** Returns a predicate of messages for an expression; null if it is empty. Throws FilterError. */
export function compile(expression) {
  const text = expression.trim();
  if (!text) return null;
  const tokens = tokenize(text);
  if (!tokens.some((token) => token.kind === "operator" || isField(token))) return contains(text);
  const parser = new Parser(tokens);
  const predicate = parser.either();
  if (!parser.done) throw new FilterError(`unexpected ${show(parser.token)}; join conditions with and, or`);
  return predicate;
}

function isField(token) {
  return token.kind === "word" && /^(headers?\.|value[.[])./.test(token.text);
}

function tokenize(text) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) {
      if (!text.slice(at).trim()) break;
      throw new FilterError(`cannot read ${JSON.stringify(text.slice(at, at + 12))}; put text in quotes`);
    }
    if (match[1]) tokens.push({ kind: "text", text: match[1].slice(1, -1).replace(/\\(.)/g, "$1") });
    else if (match[2]) tokens.push({ kind: /[()]/.test(match[2]) ? "bracket" : "operator", text: match[2] });
    else tokens.push({ kind: "word", text: match[3] });
  }
  return tokens;
}

function show(token) {
  return token ? JSON.stringify(token.text) : "end";
}

/** A predicate that looks for a text in key, headers and payload, in any case. */
function contains(needle) {
  const wanted = needle.toLowerCase();
  const has = (text) => text !== null && text !== undefined && String(text).toLowerCase().includes(wanted);
  return (message) =>
    has(message.key) || has(message.text) || Object.entries(message.attributes).some(([name, value]) => has(name) || has(value));
}

class Parser {
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
  }

  get token() {
    return this.tokens[this.at];
  }

  get done() {
    return this.at >= this.tokens.length;
  }

  word(text) {
    const is = this.token?.kind === "word" && this.token.text.toLowerCase() === text;
    if (is) this.at += 1;
    return is;
  }

  either() {
    let left = this.both();
    while (this.word("or")) {
      const [first, second] = [left, this.both()];
      left = (message) => first(message) || second(message);
    }
    return left;
  }

  both() {
    let left = this.single();
    while (this.word("and")) {
      const [first, second] = [left, this.single()];
      left = (message) => first(message) && second(message);
    }
    return left;
  }

  single() {
    if (this.word("not")) {
      const inner = this.single();
      return (message) => !inner(message);
    }
    if (this.token?.kind === "bracket" && this.token.text === "(") {
      this.at += 1;
      const inner = this.either();
      if (this.token?.text !== ")") throw new FilterError("a bracket is not closed");
      this.at += 1;
      return inner;
    }
    return this.condition();
  }

  condition() {
    const token = this.token;
    if (!token) throw new FilterError("a condition is missing at the end");
    if (token.kind === "text") {
      this.at += 1;
      return contains(token.text);
    }
    if (token.kind !== "word" || !FIELD.test(token.text)) {
      throw new FilterError(
        `${show(token)} is not a field; fields are key, header.NAME, text, value.PATH, partition, offset, size, producer`,
      );
    }
    this.at += 1;
    const read = reader(token.text);
    if (this.token?.kind !== "operator") {
      return (message) => ![undefined, null, false, ""].includes(read(message));
    }
    const operator = this.token.text;
    if (!OPERATORS.has(operator)) throw new FilterError(`${operator} is not an operator`);
    this.at += 1;
    const wanted = this.token;
    if (!wanted || !["text", "word"].includes(wanted.kind)) throw new FilterError(`a value is missing after ${operator}`);
    this.at += 1;
    return comparison(read, operator, wanted.text, wanted.kind === "word");
  }
}

function reader(name) {
  if (name === "key") return (message) => message.key;
  if (name === "text" || name === "payload") return (message) => message.text;
  if (name === "value") return (message) => message.json;
  if (name === "offset") return (message) => message.number;
  if (["partition", "size", "producer", "topic"].includes(name)) return (message) => message[name];
  const header = /^headers?\.(.*)$/.exec(name);
  if (header) return (message) => (Object.hasOwn(message.attributes, header[1]) ? message.attributes[header[1]] : undefined);
  const path = name.slice("value".length);
  return (message) => valueAt(message.json, path);
}

function comparison(read, operator, wanted, bare) {
  const number = wanted.trim() !== "" && Number.isFinite(Number(wanted)) ? Number(wanted) : null;
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const equal = (value) => {
    if (value === null) return bare && wanted === "null";
    if (typeof value === "number") return number !== null && value === number;
    if (typeof value === "boolean") return wanted === String(value);
    return text(value) === wanted;
  };
  const order = (value) => {
    if (number !== null && value !== "" && Number.isFinite(Number(value))) return Number(value) - number;
    return text(value) < wanted ? -1 : text(value) > wanted ? 1 : 0;
  };
  const lower = wanted.toLowerCase();
  const tests = {
    "==": equal,
    "=": equal,
    "!=": (value) => !equal(value),
    "<": (value) => order(value) < 0,
    "<=": (value) => order(value) <= 0,
    ">": (value) => order(value) > 0,
    ">=": (value) => order(value) >= 0,
    "~": (value) => text(value).toLowerCase().includes(lower),
    "!~": (value) => !text(value).toLowerCase().includes(lower),
    "^=": (value) => text(value).startsWith(wanted),
    "$=": (value) => text(value).endsWith(wanted),
  };
  const test = tests[operator];
  const negative = operator === "!=" || operator === "!~";
  return (message) => {
    const value = read(message);
    if (value === undefined || (value === null && !["==", "=", "!="].includes(operator))) return negative;
    return test(value);
  };
}
