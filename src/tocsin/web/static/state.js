// The reducer: it applies trace rows to the state of the city. It uses no page, clock or network: rows have their time,
// and the caller gives `nowMs` for animations. It changes the given state in place, because a second has thousands of
// positions; the same rows on an empty state always give the same state.
//
// docs/watching.md describes the rows. Unknown kinds are ignored, so that an older page works with a newer coordinator.

import { People } from "./people.js";
import { Series } from "./series.js";

const EVENTS = 400;
const FEED = 250;
/** Moves of the same kind between the same two brokers within this time are one entry. */
const TOGETHER_S = 3;
const ARCS = 80;
/** The curves continue if a picture follows the last row within this time, or within this number of samples. */
const CONTINUES_S = 30;
const CONTINUES_SAMPLES = 20;

/**
 * @typedef {Record<string, any>} Row
 * @typedef {{id: string, index: number, lat?: number, lon?: number, address: string, capacity: number, state: string,
 *   accepting: boolean, subscribers: number, load?: number, sample: Record<string, any>, loads: Series}} Broker
 * @typedef {{key: number, kind: string, time_s: number, count: number, subscriber?: string, source?: string,
 *   target?: string, broker?: string, topic?: string, note: string, detail: Record<string, any>}} Entry
 */

export function empty() {
  return {
    time_s: 0,
    rows: 0,
    changes: { ground: 0, feed: 0, channels: 0, topics: 0 }, // counters: a view draws again when its counter has changed
    streets: /** @type {number[][][]} */ ([]),
    places: /** @type {Map<string, Row>} */ (new Map()),
    brokers: /** @type {Map<string, Broker>} */ (new Map()),
    people: new People(),
    events: /** @type {Row[]} */ ([]),
    arcs: /** @type {Row[]} */ ([]),
    feed: /** @type {Entry[]} */ ([]),
    balance: /** @type {Record<string, any>} */ ({}),
    curves: {
      cov: new Series(),
      mean: new Series(),
      notifications: new Series(),
      p50: new Series(),
      p95: new Series(),
    },
    channels: /** @type {Map<string, Record<string, any>>} */ (new Map()),
    cluster: /** @type {Record<string, any>|null} */ (null),
    topics: /** @type {Map<string, Record<string, any>>} */ (new Map()),
    sites: /** @type {Record<string, any>|null} */ (null),
    emergencies: 0,
  };
}

/** @typedef {ReturnType<typeof empty>} State */

/** The state after a picture, with the colours of the state before it and, if it continues, its curves and feed. */
export function fromPicture(/** @type {State|null} */ before, /** @type {Row[]} */ rows, /** @type {number} */ nowMs) {
  const state = empty();
  const start_s = rows.reduce((latest, row) => Math.max(latest, row.time_s ?? 0), 0);
  const away_s = before === null ? Infinity : start_s - before.time_s;
  const continues =
    before !== null && away_s >= 0 && away_s <= Math.max(CONTINUES_S, CONTINUES_SAMPLES * before.curves.cov.pace_s);
  if (before !== null) {
    state.changes = {
      ground: before.changes.ground + 1,
      feed: before.changes.feed + 1,
      channels: before.changes.channels + 1,
      topics: before.changes.topics + 1,
    };
    // Brokers keep their colours. They are "gone" unless the picture has them.
    for (const old of before.brokers.values()) {
      state.brokers.set(old.id, { ...old, state: "gone", loads: continues ? old.loads : new Series() });
    }
  }
  if (before !== null && continues)
    Object.assign(state, { curves: before.curves, feed: before.feed, emergencies: before.emergencies });
  const { feed, emergencies } = state;
  state.feed = [];
  state.time_s = start_s;
  // Colours follow the order of names, so that they are the same on every page.
  const names = rows.filter((row) => row.kind === "broker").map((row) => row.broker);
  for (const name of names.sort(byName)) brokerOf(state, name);
  apply(state, rows, nowMs);
  // A picture describes the present state; its rows are no new events for the feed.
  Object.assign(state, { feed, arcs: [], emergencies: Math.max(emergencies, state.events.length) });
  return state;
}

/** Apply the rows of a frame. */
export function apply(/** @type {State} */ state, /** @type {Row[]} */ rows, /** @type {number} */ nowMs) {
  let sampled = false;
  for (const row of rows) {
    if (row.time_s > state.time_s) state.time_s = row.time_s;
    sampled ||= row.kind === "sample";
    REDUCERS[row.kind]?.(state, row, nowMs);
  }
  state.rows += rows.length;
  if (sampled) summarise(state);
  return state;
}

const REDUCERS = /** @type {Record<string, (state: State, row: Row, nowMs: number) => void>} */ ({
  street(state, row) {
    state.streets.push(row.detail?.line ?? []);
    state.changes.ground += 1;
  },
  place(state, row) {
    // The same place comes again when its dataset is loaded again.
    state.places.set(`${row.detail?.dataset} ${row.note} ${row.lat} ${row.lon}`, row);
    state.changes.ground += 1;
  },
  broker(state, row) {
    const broker = brokerOf(state, row.broker);
    broker.lat = row.lat ?? undefined;
    broker.lon = row.lon ?? undefined;
    Object.assign(broker, { address: "", capacity: 1, state: "alive", accepting: true }, row.detail);
    state.changes.ground += 1;
  },
  sample(state, row) {
    const broker = brokerOf(state, row.broker);
    broker.load = row.load_bytes_per_s;
    broker.subscribers = row.subscribers ?? broker.subscribers;
    broker.sample = row.detail ?? broker.sample;
    broker.loads.add(row.time_s, row.load_bytes_per_s);
  },
  sites(state, row) {
    state.sites = row.detail ?? null;
  },
  balance(state, row) {
    state.balance = {
      ...row.detail,
      cov: row.cov,
      mean_bytes_per_s: row.load_bytes_per_s,
      subscribers: row.subscribers,
      moves: row.moves,
    };
    state.curves.cov.add(row.time_s, row.cov);
    state.curves.mean.add(row.time_s, row.load_bytes_per_s);
  },
  plan(state, row) {
    addEntry(state, "plan", row, { detail: { ...row.detail, cov: row.cov, moves: row.moves } });
  },
  join(state, row) {
    state.people.serve(row.subscriber, row.broker ? brokerOf(state, row.broker).index : -1);
  },
  leave(state, row) {
    state.people.leave(row.subscriber);
  },
  move(state, row, nowMs) {
    addEntry(state, "move", row, { source: row.broker, target: row.target });
    addArc(state, row, nowMs);
  },
  moved(state, row) {
    state.people.serve(row.subscriber, brokerOf(state, row.target).index);
  },
  "move-failed"(state, row) {
    addEntry(state, "move-failed", row, { source: row.broker, target: row.target });
  },
  failover(state, row) {
    state.people.serve(row.subscriber, row.target ? brokerOf(state, row.target).index : -1);
    addEntry(state, "failover", row, { target: row.target });
  },
  "broker-failed"(state, row) {
    brokerOf(state, row.broker).state = "dead";
    state.changes.ground += 1;
    addEntry(state, "broker-failed", row, { broker: row.broker });
  },
  "broker-back"(state, row) {
    brokerOf(state, row.broker).state = "alive";
    state.changes.ground += 1;
    addEntry(state, "broker-back", row, { broker: row.broker });
  },
  position(state, row, nowMs) {
    state.people.place(row.subscriber, row.lat, row.lon, nowMs);
  },
  event(state, row, nowMs) {
    state.events.push({ ...row, bornMs: nowMs - 1000 * (state.time_s - row.time_s) });
    state.emergencies += 1;
    if (state.events.length > EVENTS) state.events.shift();
  },
  channel(state, row) {
    if (row.detail?.state === "gone") state.channels.delete(row.channel);
    else state.channels.set(row.channel, row.detail ?? {});
    state.changes.channels += 1;
  },
  cluster(state, row) {
    state.cluster = row.detail ?? null;
    state.changes.channels += 1;
  },
  topic(state, row) {
    const { topic, ...detail } = row.detail ?? {};
    if (detail.state === "gone") state.topics.delete(topic);
    else state.topics.set(topic, { ...detail, home: row.broker ?? null });
    state.changes.topics += 1;
  },
  "topic-move"(state, row, nowMs) {
    addEntry(state, "topic-move", row, { source: row.broker, target: row.target, topic: row.detail?.topic });
    addArc(state, row, nowMs);
  },
  "topic-stays"(state, row) {
    addEntry(state, "topic-stays", row, { source: row.broker, target: row.target, topic: row.detail?.topic });
  },
  "topic-failover"(state, row) {
    addEntry(state, "topic-failover", row, { target: row.target, topic: row.detail?.topic });
  },
});

for (const kind of ["offload", "offload-failed", "offload-waits", "offload-refused", "limits"]) {
  REDUCERS[kind] = (state, row, nowMs) => {
    addEntry(state, kind, row, { source: row.broker, target: row.target, topic: row.detail?.topic });
    if (kind === "offload") addArc(state, row, nowMs);
  };
}

function addArc(state, row, nowMs) {
  state.arcs.push({ source: row.broker, target: row.target, bornMs: nowMs });
  if (state.arcs.length > ARCS) state.arcs.shift();
}

/** Add an entry to the feed, or count one more in a recent entry of the same kind and brokers. */
function addEntry(state, kind, row, more) {
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

const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });

/** @returns {Broker} */
function brokerOf(state, id) {
  let broker = state.brokers.get(id);
  if (!broker) {
    broker = {
      id,
      index: state.brokers.size,
      address: "",
      capacity: 1,
      state: "alive",
      accepting: true,
      subscribers: 0,
      load: undefined,
      sample: {},
      loads: new Series(),
    };
    state.brokers.set(id, broker);
  }
  return broker;
}

/** Add points to the curves of the whole network, from the last sample of each serving broker. */
function summarise(state) {
  let sent = 0;
  let weighted = 0;
  let slowest;
  let hasRates = false;
  for (const broker of servingBrokers(state)) {
    const { notifications_per_s: rate, delivery_s_p50: p50, delivery_s_p95: p95 } = broker.sample;
    if (!Number.isFinite(rate)) continue; // a simulation may not have this value
    hasRates = true;
    sent += rate;
    if (Number.isFinite(p50) && p50 !== null) weighted += rate * p50;
    if (Number.isFinite(p95) && p95 !== null && rate > 0) slowest = Math.max(slowest ?? 0, p95);
  }
  if (hasRates) state.curves.notifications.add(state.time_s, sent);
  if (sent > 0 && weighted > 0) state.curves.p50.add(state.time_s, weighted / sent);
  if (slowest !== undefined) state.curves.p95.add(state.time_s, slowest);
}

/** Brokers that are not gone, in the order of their names. */
export function listedBrokers(/** @type {State} */ state) {
  return [...state.brokers.values()].filter((broker) => broker.state !== "gone").sort((a, b) => byName(a.id, b.id));
}

export function servingBrokers(/** @type {State} */ state) {
  return listedBrokers(state).filter((broker) => broker.state !== "dead");
}

/** The span of time that the charts show: about 150 samples, whatever their period, and at least 120 seconds. */
export function shownSpan(/** @type {State} */ state) {
  const { cov, notifications } = state.curves;
  const curve = cov.times.length ? cov : notifications;
  const first_s = curve.times[0] ?? state.time_s;
  const length_s = Math.max(120, 150 * curve.step_s);
  const from_s = Math.max(first_s, state.time_s - length_s);
  return { from_s: Math.min(from_s, state.time_s - 20), to_s: state.time_s };
}
