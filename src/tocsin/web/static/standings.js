// Where a subscriber stands in each of its subscriptions. Brokers deliver at least once and in order, so whatever lies
// before the received cursor is a repeat, however many connections deliver it. No connection here: `session` has those.

/**
 * @typedef {{epoch: number, offset: number}} Cursor
 * @typedef {{subscription: string, channel: string, parameters: any, received: Cursor, told: string}} Standing
 */

/** @param {string} text `epoch-offset` @returns {Cursor|null} */
export function parseCursor(text) {
  const [epoch, offset] = String(text).split("-").map(Number);
  return Number.isFinite(epoch) && Number.isFinite(offset) ? { epoch, offset } : null;
}

/** Negative if a lies before b. */
export const compare = (a, b) => a.epoch - b.epoch || a.offset - b.offset;
export const writeCursor = (cursor) => `${cursor.epoch}-${cursor.offset}`;

export class Standings {
  constructor() {
    /** @type {Map<string, Standing>} */ this.held = new Map();
  }

  all() {
    return [...this.held.values()];
  }

  /** What to resume from. */
  cursors() {
    return Object.fromEntries(this.all().map((one) => [one.subscription, writeCursor(one.received)]));
  }

  begun() {
    return new Map(this.all().map((one) => [one.subscription, one.received]));
  }

  forget(subscription) {
    this.held.delete(subscription);
  }

  /** A broker holds it; a new one begins at its cursor. */
  hold({ subscription, channel, parameters, cursor }) {
    const known = this.held.get(subscription);
    const received = parseCursor(cursor);
    if (known) Object.assign(known, { channel, parameters });
    else if (received) this.held.set(subscription, { subscription, channel, parameters, received, told: "" });
  }

  /** The message if it is new, null if it is a repeat or nobody's. `reached` is how far its connection has come. */
  result(message, reached) {
    const cursor = parseCursor(message.cursor);
    if (cursor) reached.set(message.subscription, cursor);
    const standing = this.held.get(message.subscription);
    if (!cursor || !standing || compare(cursor, standing.received) <= 0) return null;
    standing.received = cursor;
    return { ...message, parameters: standing.parameters };
  }

  /** Results before this place will not come. If it lies before what this connection has reached, we remember another
   * life; what other connections brought says nothing. */
  gap(message, reached) {
    const cursor = parseCursor(message.cursor);
    const standing = this.held.get(message.subscription);
    if (!cursor || !standing) return null;
    const before = compare(cursor, reached.get(message.subscription) ?? cursor) < 0;
    reached.set(message.subscription, cursor);
    if (!before && compare(cursor, standing.received) <= 0) return null;
    standing.received = cursor;
    return { ...message, channel: standing.channel };
  }

  /** Every result before these positions, of what that connection holds, was sent. */
  progress(channels, holds, reached) {
    for (const standing of this.held.values()) {
      const cursor = holds.has(standing.subscription) ? parseCursor(channels[standing.channel] ?? "") : null;
      if (cursor) further(reached, standing.subscription, cursor);
      if (cursor?.epoch === standing.received.epoch && compare(cursor, standing.received) > 0)
        standing.received = cursor;
    }
  }

  /** Cursors that the broker has not been told; they count as told. */
  news() {
    const fresh = this.all().filter((one) => one.told !== writeCursor(one.received));
    for (const one of fresh) one.told = writeCursor(one.received);
    return Object.fromEntries(fresh.map((one) => [one.subscription, one.told]));
  }
}

/** A place is not behind one that was reached before. */
export function further(reached, subscription, cursor) {
  if (compare(cursor, reached.get(subscription) ?? cursor) >= 0) reached.set(subscription, cursor);
}
