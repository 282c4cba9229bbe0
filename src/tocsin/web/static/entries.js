// Entries of the feed: moves, failovers and plans with their reasons. Part of the reducer.

const FEED = 250;
/** Moves of the same kind between the same two brokers within this time are one entry. */
const TOGETHER_S = 3;

/**
 * @typedef {{key: number, kind: string, time_s: number, count: number, subscriber?: string, source?: string,
 *   target?: string, broker?: string, note: string, detail: Record<string, any>}} Entry
 */

/** Add an entry to the feed, or count one more in a recent entry of the same kind and brokers. */
export function note(state, kind, row, more) {
  state.changes.feed += 1;
  for (const entry of state.feed.slice(0, 12)) {
    if (row.time_s - entry.time_s > TOGETHER_S || kind === "plan") break;
    if (
      entry.kind === kind &&
      entry.source === more.source &&
      entry.target === more.target &&
      entry.broker === more.broker
    ) {
      entry.count += 1;
      return;
    }
  }
  state.feed.unshift({
    key: state.changes.feed,
    kind,
    time_s: row.time_s,
    count: 1,
    subscriber: row.subscriber,
    note: row.note ?? "",
    detail: {},
    ...more,
  });
  if (state.feed.length > FEED) state.feed.pop();
}
