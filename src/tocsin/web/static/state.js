// The reducer: trace rows in, the state of the city out. It sees no page, no clock and no network: time comes with the
// rows, and `nowMs` (for what glides and fades) from whoever calls. It changes the state it is given, because a second
// brings thousands of positions; the same rows on a fresh state always give the same state.
//
// The rows are those of docs/watching.md; a kind that is not known here is passed over, so an older page can watch a
// newer coordinator.

import { note } from "./entries.js";
import { People } from "./people.js";
import { Series } from "./series.js";

const EVENTS = 400;
const ARCS = 80;
/** A picture that follows the last row by less than this, or by few samples, continues the curves. */
const CONTINUES_S = 30;
const CONTINUES_SAMPLES = 20;

/**
 * @typedef {Record<string, any>} Row
 * @typedef {{id: string, index: number, lat?: number, lon?: number, address: string, capacity: number, state: string,
 *   accepting: boolean, subscribers: number, load?: number, sample: Record<string, any>, loads: Series}} Broker
 */

export function empty() {
  return {
    time_s: 0,
    rows: 0,
    changes: { ground: 0, feed: 0, channels: 0 }, // counters: who draws compares them with what it drew last
    streets: /** @type {number[][][]} */ ([]),
    places: /** @type {Map<string, Row>} */ (new Map()),
    brokers: /** @type {Map<string, Broker>} */ (new Map()),
    people: new People(),
    events: /** @type {Row[]} */ ([]),
    arcs: /** @type {Row[]} */ ([]),
    feed: /** @type {import("./entries.js").Entry[]} */ ([]),
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
    joined: 0,
    emergencies: 0,
  };
}

/** @typedef {ReturnType<typeof empty>} State */

/** The state after a picture: what it says, with the colours, curves and feed of what it continues. */
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
    };
    // Brokers keep their colours; they are "gone" until the picture says otherwise.
    for (const old of before.brokers.values()) {
      state.brokers.set(old.id, { ...old, state: "gone", loads: continues ? old.loads : new Series() });
    }
  }
  if (before !== null && continues)
    Object.assign(state, { curves: before.curves, feed: before.feed, emergencies: before.emergencies });
  const { feed, emergencies } = state;
  state.feed = [];
  state.time_s = start_s;
  // Colours go by name, so that they are the same on every page that looks.
  const names = rows.filter((row) => row.kind === "broker").map((row) => row.broker);
  for (const name of names.sort(byName)) known(state, name);
  apply(state, rows, nowMs);
  // A picture tells how things are, not that they happened.
  Object.assign(state, { feed, arcs: [], emergencies: Math.max(emergencies, state.events.length) });
  return state;
}

/** Rows that happened since. */
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
    state.places.set(`${row.detail?.dataset} ${row.note} ${row.lat} ${row.lon}`, row); // told again when loaded again
    state.changes.ground += 1;
  },
  broker(state, row) {
    const broker = known(state, row.broker);
    broker.lat = row.lat ?? undefined;
    broker.lon = row.lon ?? undefined;
    Object.assign(broker, { address: "", capacity: 1, state: "alive", accepting: true }, row.detail);
    state.changes.ground += 1;
  },
  sample(state, row) {
    const broker = known(state, row.broker);
    broker.load = row.load_bytes_per_s;
    broker.subscribers = row.subscribers ?? broker.subscribers;
    broker.sample = row.detail ?? broker.sample;
    broker.loads.add(row.time_s, row.load_bytes_per_s);
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
    note(state, "plan", row, { detail: { ...row.detail, cov: row.cov, moves: row.moves } });
  },
  join(state, row) {
    state.people.serve(row.subscriber, row.broker ? known(state, row.broker).index : -1);
    state.joined += 1;
  },
  leave(state, row) {
    state.people.leave(row.subscriber);
  },
  move(state, row, nowMs) {
    note(state, "move", row, { source: row.broker, target: row.target });
    state.arcs.push({ source: row.broker, target: row.target, bornMs: nowMs });
    if (state.arcs.length > ARCS) state.arcs.shift();
  },
  moved(state, row) {
    state.people.serve(row.subscriber, known(state, row.target).index);
  },
  "move-failed"(state, row) {
    note(state, "move-failed", row, { source: row.broker, target: row.target });
  },
  failover(state, row) {
    state.people.serve(row.subscriber, row.target ? known(state, row.target).index : -1);
    note(state, "failover", row, { target: row.target });
  },
  "broker-failed"(state, row) {
    known(state, row.broker).state = "dead";
    state.changes.ground += 1;
    note(state, "broker-failed", row, { broker: row.broker });
  },
  "broker-back"(state, row) {
    known(state, row.broker).state = "alive";
    state.changes.ground += 1;
    note(state, "broker-back", row, { broker: row.broker });
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
});

const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });

/** @returns {Broker} */
function known(state, id) {
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

/** The network's own curves, from the last sample of each broker that serves. */
function summarise(state) {
  let sent = 0;
  let weighted = 0;
  let slowest;
  let any = false;
  for (const broker of serving(state)) {
    const { notifications_per_s: rate, delivery_s_p50: p50, delivery_s_p95: p95 } = broker.sample;
    if (!Number.isFinite(rate)) continue; // a simulation may not count them
    any = true;
    sent += rate;
    if (Number.isFinite(p50) && p50 !== null) weighted += rate * p50;
    if (Number.isFinite(p95) && p95 !== null && rate > 0) slowest = Math.max(slowest ?? 0, p95);
  }
  if (any) state.curves.notifications.add(state.time_s, sent);
  if (sent > 0 && weighted > 0) state.curves.p50.add(state.time_s, weighted / sent);
  if (slowest !== undefined) state.curves.p95.add(state.time_s, slowest);
}

/** Brokers that are there, in a steady order. */
export function listed(/** @type {State} */ state) {
  return [...state.brokers.values()].filter((broker) => broker.state !== "gone").sort((a, b) => byName(a.id, b.id));
}

export function serving(/** @type {State} */ state) {
  return listed(state).filter((broker) => broker.state !== "dead");
}

/** The stretch of time that curves show: about 150 samples, whether they come each second or each minute. */
export function shownSpan(/** @type {State} */ state) {
  const { cov, notifications } = state.curves;
  const curve = cov.times.length ? cov : notifications;
  const first_s = curve.times[0] ?? state.time_s;
  const length_s = Math.max(120, 150 * curve.step_s);
  const from_s = Math.max(first_s, state.time_s - length_s);
  return { from_s: Math.min(from_s, state.time_s - 20), to_s: state.time_s };
}
