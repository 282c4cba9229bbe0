// The progress of a subscriber in each of its subscriptions. Brokers deliver at least once and in order, so a result up
// to the received cursor is a repeat, from whichever connection it comes. `session.js` has the connections.

/**
 * @typedef {{epoch: number, offset: number}} Cursor
 * @typedef {{subscription: string, channel: string, parameters: any, received: Cursor, acknowledged: string}} Progress
 */

/** @param {string} text `epoch-offset` @returns {Cursor|null} */
export function parseCursor(text) {
  const [epoch, offset] = String(text).split("-").map(Number);
  return Number.isFinite(epoch) && Number.isFinite(offset) ? { epoch, offset } : null;
}

/** Negative if a is before b. */
const compare = (a, b) => a.epoch - b.epoch || a.offset - b.offset;
export const writeCursor = (cursor) => `${cursor.epoch}-${cursor.offset}`;

export class Subscriptions {
  constructor() {
    /** @type {Map<string, Progress>} */ this.byId = new Map();
  }

  all() {
    return [...this.byId.values()];
  }

  /** The cursors to resume from, as text. */
  cursors() {
    return Object.fromEntries(this.all().map((progress) => [progress.subscription, writeCursor(progress.received)]));
  }

  /** The received cursor of each subscription. */
  received() {
    return new Map(this.all().map((progress) => [progress.subscription, progress.received]));
  }

  remove(subscription) {
    this.byId.delete(subscription);
  }

  /** Add a subscription that a broker holds; a new one starts at its cursor. */
  hold({ subscription, channel, parameters, cursor }) {
    const progress = this.byId.get(subscription);
    const received = parseCursor(cursor);
    if (progress) Object.assign(progress, { channel, parameters });
    else if (received) this.byId.set(subscription, { subscription, channel, parameters, received, acknowledged: "" });
  }

  /** The message if it is new; null for a repeat or an unknown subscription.
   * `reached` has the last cursor of each subscription on the message's connection. */
  result(message, reached) {
    const cursor = parseCursor(message.cursor);
    if (cursor) reached.set(message.subscription, cursor);
    const progress = this.byId.get(message.subscription);
    if (!cursor || !progress || compare(cursor, progress.received) <= 0) return null;
    progress.received = cursor;
    return { ...message, parameters: progress.parameters };
  }

  /** Results before the gap's cursor are lost. If that cursor is before the last one of this connection, the channel
   * has a new epoch and `received` goes back to it. Cursors of other connections do not count for this. */
  gap(message, reached) {
    const cursor = parseCursor(message.cursor);
    const progress = this.byId.get(message.subscription);
    if (!cursor || !progress) return null;
    const before = compare(cursor, reached.get(message.subscription) ?? cursor) < 0;
    reached.set(message.subscription, cursor);
    if (!before && compare(cursor, progress.received) <= 0) return null;
    progress.received = cursor;
    return { ...message, channel: progress.channel };
  }

  /** The broker has sent every result before these positions, for the subscriptions in `holds`. */
  progress(channels, holds, reached) {
    for (const progress of this.byId.values()) {
      const cursor = holds.has(progress.subscription) ? parseCursor(channels[progress.channel] ?? "") : null;
      if (cursor) advance(reached, progress.subscription, cursor);
      if (cursor?.epoch === progress.received.epoch && compare(cursor, progress.received) > 0)
        progress.received = cursor;
    }
  }

  /** Cursors that the broker does not know yet. They count as acknowledged from now on. */
  takeUnacknowledged() {
    const changed = this.all().filter((progress) => progress.acknowledged !== writeCursor(progress.received));
    for (const progress of changed) progress.acknowledged = writeCursor(progress.received);
    return Object.fromEntries(changed.map((progress) => [progress.subscription, progress.acknowledged]));
  }
}

/** Set the reached cursor of a subscription, unless it would go back. */
export function advance(reached, subscription, cursor) {
  if (compare(cursor, reached.get(subscription) ?? cursor) >= 0) reached.set(subscription, cursor);
}
