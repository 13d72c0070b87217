// Server-sent events as they arrive in pieces. Pure.

/** Splits the text of a stream into events; keeps an incomplete one for the next piece. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.lastId = "";
  }

  /** Returns the events that end in this piece: `{name, data, id}`. */
  feed(piece) {
    const blocks = (this.rest + piece).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop();
    const events = [];
    for (const block of blocks) {
      const event = { name: "message", data: [], id: null };
      for (const line of block.split("\n")) {
        if (!line || line.startsWith(":")) continue;
        const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === "event") event.name = value;
        else if (field === "data") event.data.push(value);
        else if (field === "id") event.id = value;
      }
      if (event.id !== null) this.lastId = event.id;
      if (event.data.length) events.push({ name: event.name, data: event.data.join("\n"), id: event.id });
    }
    return events;
  }
}
