// What a live tail keeps: the rows that are shown, and those that arrived during a pause. Pure.

/** Most rows of a tail; older ones leave the page, not the topic. */
export const MOST_ROWS = 10_000;
/** With so many messages or bytes waiting in a pause the stream is ended; it goes on behind the last one later. */
export const MOST_WAITING = 20_000;
export const MOST_WAITING_BYTES = 32 * 1024 * 1024;

export class TailBuffer {
  constructor() {
    this.rows = [];
    this.waiting = [];
    this.waitingBytes = 0;
    this.paused = false;
    this.received = 0;
    this.dropped = 0;
  }

  /** Takes messages as they arrive; false if the pause holds as much as it may, so that the stream should end. */
  add(messages) {
    this.received += messages.length;
    if (!this.paused) {
      this.append(messages);
      return true;
    }
    for (const message of messages) {
      this.waiting.push(message);
      this.waitingBytes += message.raw.length;
    }
    return this.waiting.length < MOST_WAITING && this.waitingBytes < MOST_WAITING_BYTES;
  }

  append(messages) {
    const rows = this.rows.concat(messages);
    const excess = Math.max(0, rows.length - MOST_ROWS);
    this.dropped += excess;
    this.rows = excess ? rows.slice(excess) : rows;
  }

  pause() {
    this.paused = true;
  }

  /** Ends the pause: what arrived meanwhile is shown in its order. */
  resume() {
    this.paused = false;
    const { waiting } = this;
    this.waiting = [];
    this.waitingBytes = 0;
    this.append(waiting);
  }
}
