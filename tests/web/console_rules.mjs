// The rules of the console, run by test_console_rules.py in Node.js: what needs no browser.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const at = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`));
const { cell, csv, jsonLines } = await at("csv.js");
const { compile, FilterError, pointed } = await at("filter.js");
const { bytes, commandLine, count, duration, inLines, milliseconds, plural, quoted, shortCount } = await at("format.js");
const { fieldsOf, fromBase64, hexDump, Shown, toBase64, valueAt, visible, visibleLines } = await at("payload.js");
const { POLICIES, shortName } = await at("notation.js");
const { MOST_ROWS, MOST_WAITING, TailBuffer } = await at("tail.js");
const { EventParser } = await at("events.js");
const { effectOf, stretches } = await at("offsets.js");
const { baseOf, grouped, kindOfRow, remedies, urgency } = await at("states.js");

const row = (offset, payload, more = {}) => ({
  topic: "/default/t", partition: 0, offset, key: null, attributes: {}, publish_time_us: 1_700_000_000_000_000,
  append_time_us: 1_700_000_000_000_500, producer: "p", size_bytes: payload?.length ?? 0, payload, ...more,
});
const order = new Shown(row(7, '{"user":{"name":"ada"},"total":12.5,"items":[{"sku":"a-x"}],"paid":true,"gone":null}', { key: "eu-42", attributes: { type: "order.created" } }));
const text = new Shown(row(8, "a timeout happened"));
const binary = new Shown(row(9, null, { payload_base64: toBase64(Uint8Array.of(0, 255, 65)) }));

const tests = {
  "a filter looks at keys, headers, text and JSON"() {
    const holds = (expression, message = order) => compile(expression)(message);
    for (const expression of [
      'key == "eu-42"', "key == eu-42", 'key ^= "eu-"', 'key $= "42"', 'header.type ~~ "ORDER"', 'value.user.name == "ada"', "value.total > 12",
      "value.total >= 12.5", "value.total < 13", "value.items[0].sku == a-x", "value.paid == true", "value.gone == null", "value.paid",
      'not value.user.name == "bob"', '(key == "x" or value.total > 1) and offset == 7', "partition == 0", 'text ~~ "SKU"', 'text !~ "timeout"',
      'value["user"]["name"] in (bob, "ada")', "time >= 2023-11-14T22:13:20Z", 'value.items ~ "sku"', '"ORDER"',
      "eu-42", "ORDER.created", '"total"', "value.nothing != 3", "not value.nothing", "size > 10", "producer == p",
    ]) assert.equal(holds(expression), true, expression);
    for (const expression of [
      'key == "eu-4"', "value.total > 12.5", 'value.total == "a"', "value.nothing == 1", "value.nothing", 'header.other ~ "x"', 'value.user.name > "b"',
      'header.type ~ "ORDER"', "partition in (1, 2)", "time > 2024-01-01", "value.items.length",
      "value.items[1].sku == a-x", "value.__proto__ == 1", "value.constructor", "header.constructor", "elsewhere",
    ]) assert.equal(holds(expression), false, expression);
    assert.equal(holds("a timeout", text), true, "words are one text");
    assert.equal(holds("value.total > 1", text), false, "no JSON has no fields");
    assert.equal(holds("text ~ a", binary), false);
    assert.equal(compile("  "), null);
  },
  "a filter that cannot be read says why"() {
    for (const [expression, why] of [
      ["value.a ==", /value is missing/], ["nothing == 1", /not a field/], ['key == "a" value.b', /unexpected/], ["(key == 1", /bracket/],
      ["key == 1 and", /missing at the end/], ['key == "a', /quotes/], ["(key in 1)", /values of in/], ["value[x] == 1", /no path/],
      ["offset > soon", /no number/], ["time > soon", /no time/], ["(".repeat(60), /nested/],
    ]) {
      assert.throws(() => compile(expression), (error) => error instanceof FilterError && why.test(error.message), expression);
    }
    assert.throws(() => compile("value.user == and key"), (error) => error.position === 14);
    assert.deepEqual(pointed("value.user == and key", 14), { text: "value.user == and key", before: 14 });
    assert.equal(pointed("x".repeat(200), 150).before, 60);
  },
  "short times have the digits that matter"() {
    for (const [seconds, shown] of [[0, "0.00 ms"], [0.00035, "0.35 ms"], [0.0042, "4.2 ms"], [0.12, "120 ms"], [2.5, "2.5 s"], [NaN, "–"]]) assert.equal(milliseconds(seconds), shown);
  },
  "policies are written as on the command line"() {
    for (const [name, text, value] of [
      ["message_ttl_s", "7d", 604800], ["message_ttl_s", "90s", 90], ["message_ttl_s", "none", 0], ["message_ttl_s", "1.5h", 5400, "90m"],
      ["max_message_bytes", "64KiB", 65536], ["max_message_bytes", "100B", 100], ["max_producers", "10", 10],
      ["publish_rate", "100/s", { messages_per_s: 100 }], ["publish_rate", "100/s,1MiB/s", { messages_per_s: 100, bytes_per_s: 1048576 }], ["dispatch_rate", "none", {}],
      ["retention", "7d,10GiB,acknowledged", { max_age_s: 604800, max_bytes: 10737418240, acknowledged: true }], ["retention", "none", {}],
    ]) {
      assert.deepEqual(POLICIES[name].parse(text), value, `${name} ${text}`);
      if (text !== "1.5h" && text !== "90s") assert.equal(POLICIES[name].show(value), text);
    }
    assert.equal(POLICIES.message_ttl_s.show(5400), "90m");
    for (const [name, text] of [["message_ttl_s", "7"], ["message_ttl_s", "-1d"], ["max_producers", "1.5"], ["publish_rate", "100"], ["publish_rate", "1/m"], ["retention", "7x"], ["max_message_bytes", "none"], ["max_message_bytes", "1e3B"]]) {
      assert.throws(() => POLICIES[name].parse(text), /is no/, `${name} ${text}`);
    }
    assert.deepEqual(["message_ttl_s", "max_message_bytes", "max_consumers"].map(shortName), ["message_ttl", "max_message", "max_consumers"]);
  },
  "a cell runs nothing in a spreadsheet"() {
    assert.equal(cell("=cmd()"), "'=cmd()");
    assert.equal(cell("@SUM(A1)"), "'@SUM(A1)");
    assert.equal(cell("+cmd|' /C calc'!A0"), "'+cmd|' /C calc'!A0");
    assert.equal(cell("-2+3"), "'-2+3");
    assert.equal(cell("\t=1"), "'\t=1");
    assert.equal(cell(-5), "-5");
    assert.equal(cell("-1.5e3"), "-1.5e3");
    assert.equal(cell('say "hi", now\n'), '"say ""hi"", now\n"');
    assert.equal(cell(null), "");
    assert.equal(cell({ a: 1 }), '"{""a"":1}"');
    assert.equal(csv(["a", "b"], [[1, "x,y"]]), 'a,b\r\n1,"x,y"\r\n');
    assert.equal(jsonLines([{ a: "\n" }]), '{"a":"\\n"}\n');
  },
  "payloads are text, JSON or bytes"() {
    assert.equal(order.json.total, 12.5);
    assert.equal(text.json, undefined);
    assert.equal(binary.text, null);
    assert.deepEqual([...binary.bytes], [0, 255, 65]);
    assert.equal(binary.preview, "00 ff 41 …");
    assert.equal(new Shown(row(1, "12")).json, 12);
    assert.equal(order.publishedMs, 1_700_000_000_000);
    assert.equal(order.exported().offset, 7);
    assert.equal(binary.exported().encoding, "base64");
    assert.equal(new Shown(row(1, "x", { key_base64: "/w==" })).exported().key_encoding, "base64");
    assert.deepEqual(fieldsOf([order, text]), ["user.name", "total", "items", "paid", "gone"]);
    assert.equal(valueAt({ a: [{ b: 1 }] }, "a[0].b"), 1);
    assert.equal(valueAt({}, "toString"), undefined);
    assert.equal(hexDump(Uint8Array.of(72, 105, 0)).trimEnd(), `00000000  48 69 00${" ".repeat(15)}  ${" ".repeat(23)}  Hi.`);
    assert.deepEqual([...fromBase64(toBase64(new Uint8Array(100_000).fill(7)))].length, 100_000);
  },
  "characters that turn or hide text are shown"() {
    assert.equal(visible("a\u202egpj.exe"), "a\\u202egpj.exe");
    assert.equal(visible("a\r\nb\u0000"), "a b\\u0000");
    assert.equal(visibleLines("a\nb\u2066"), "a\nb\\u2066");
  },
  "a pause loses nothing and keeps the order"() {
    const tail = new TailBuffer();
    const made = (from, to) => Array.from({ length: to - from }, (_, index) => new Shown(row(from + index, "x")));
    assert.equal(tail.add(made(0, 5)), true);
    tail.pause();
    assert.equal(tail.add(made(5, 9)), true);
    assert.equal(tail.rows.length, 5);
    tail.resume();
    tail.add(made(9, 10));
    assert.deepEqual(tail.rows.map((each) => each.number), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    tail.pause();
    assert.equal(tail.add(made(10, 10 + MOST_WAITING)), false, "the stream has to end, and goes on behind the last one");
    tail.resume();
    assert.equal(tail.rows.length, MOST_ROWS);
    assert.equal(tail.received, 10 + MOST_WAITING);
    assert.equal(tail.dropped + tail.rows.length, tail.received);
    assert.equal(tail.rows.at(-1).number, 9 + MOST_WAITING);
  },
  "events are read from any pieces"() {
    const text = 'id: 0:5\nevent: message\ndata: {"a":\ndata: 1}\n\n: keep-alive\n\nevent: open\r\ndata: {}\r\nid: 0:6\r\n\r\n';
    for (const size of [1, 3, 7, 1000]) {
      const parser = new EventParser();
      const events = [];
      for (let at = 0; at < text.length; at += size) events.push(...parser.feed(text.slice(at, at + size)));
      assert.deepEqual(events, [{ name: "message", data: '{"a":\n1}', id: "0:5" }, { name: "open", data: "{}", id: "0:6" }], `pieces of ${size}`);
      assert.equal(parser.lastId, "0:6");
    }
  },
  "numbers, sizes, durations and command lines are written for people"() {
    assert.equal(count(1234567), "1,234,567");
    assert.equal(count("18446744073709551615"), "18,446,744,073,709,551,615");
    assert.equal(count(undefined), "–");
    assert.equal(shortCount(12_345), "12.3k");
    assert.equal(bytes(1536), "1.5 KiB");
    assert.equal(bytes(4 * 1024 ** 3), "4.0 GiB");
    assert.equal(duration(185), "3 min 5 s");
    assert.equal(duration(0.004), "4.0 ms");
    assert.equal(duration(90_000), "1 d 1 h");
    assert.equal(plural(1, "match", "matches"), "1 match");
    assert.equal(quoted("it's; rm -rf /"), `'it'\\''s; rm -rf /'`);
    assert.equal(commandLine("danube", false, undefined, "", "a b"), "danube 'a b'");
  },
  "JSON of one line is put into lines as it was written"() {
    const text = String.raw`{"n":0.0,"big":12345678901234567890,"s":"a { [ ] , \" b","list":[1,{}, []],"none":{ }}`;
    const lines = inLines(text);
    assert.equal(lines.split("\n")[1], '  "n": 0.0,');
    assert.ok(lines.includes('"big": 12345678901234567890,') && lines.includes(String.raw`"a { [ ] , \" b"`) && lines.endsWith('"none": {}\n}'), lines);
    assert.deepEqual(JSON.parse(lines), JSON.parse(text));
    for (const other of ['syntax = "proto3";', "", '{\n  "a": 1\n}']) assert.equal(inLines(other), other);
  },
  "the dry run of a seek counts what comes again"() {
    // 100 messages: 0 to 39 acknowledged, 40 not, of those behind it 9 acknowledged: 51 are left.
    const cursor = { floor: 40, end_offset: 100, backlog_messages: 51, in_flight_messages: 5, waiting_messages: 1, delayed_messages: 2, poisoned_messages: 0 };
    const told = (target) => Object.values(effectOf(cursor, target));
    assert.deepEqual(told(40), [40, 9, 0, 60, true], "the same place, but what was acknowledged behind it comes again");
    assert.deepEqual(told(15), [15, 34, 0, 85, true]);
    assert.deepEqual(told(41), [41, 9, 1, 59, true]);
    assert.deepEqual(told(60), [60, 9, 20, 40, false], "upper bounds");
    assert.deepEqual(told(100), [100, 0, 51, 0, true]);
    assert.deepEqual(told(1000), [100, 0, 51, 0, true]);
    const parts = Object.fromEntries(stretches(cursor, 10).map((part) => [part.id, part.messages]));
    assert.deepEqual(parts, { done: 30, flight: 5, again: 3, acked: 9, behind: 43 });
    assert.equal(Object.values(parts).reduce((sum, each) => sum + each, 0), 90);
  },
  "partitions of a subscription are one row with the worst state"() {
    const part = (number, state, well, backlog) => ({
      topic: `/d/t-part-${number}`, subscription: "s", state, sentence: state, well, backlog_messages: backlog, oldest_age_s: backlog, consumers: 1,
      in_flight_messages: 0, waiting_messages: 0, delayed_messages: 0, poisoned_messages: 0, dead_lettered_messages: 0, redelivered_messages: 0,
    });
    const [one, ...rest] = grouped([part(0, "caught-up", true, 0), part(1, "blocked", false, 7), part(2, "no-consumer", false, 9)]);
    assert.equal(rest.length, 0);
    assert.deepEqual([one.topic, one.partitions, one.state, one.backlog_messages, one.oldest_age_s, one.consumers], ["/d/t", 3, "blocked", 16, 9, 3]);
    assert.equal(urgency(one) > urgency(part(2, "no-consumer", false, 9)), true);
    assert.equal(urgency(part(0, "no-consumer", true, 0)), 0);
    assert.equal(kindOfRow(part(0, "no-consumer", true, 0)), "");
    assert.equal(baseOf("/d/t-part-12"), "/d/t");
    for (const state of ["no-consumer", "blocked", "waiting-for-storage", "dead-lettering", "window-full", "a-new-one"]) {
      assert.match(remedies(part(0, state, false, 1))[0].cli, /^danube /);
    }
  },
};

let failed = 0;
for (const [name, run] of Object.entries(tests)) {
  try {
    run();
  } catch (error) {
    failed += 1;
    console.log(`${name}: ${error.message}\n${error.stack}`);
  }
}
console.log(`${Object.keys(tests).length - failed} of ${Object.keys(tests).length} passed`);
process.exitCode = failed ? 1 : 0;
