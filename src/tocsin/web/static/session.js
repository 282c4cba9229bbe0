// A subscriber's session with a broker over its WebSocket (docs/clients.md, docs/brokers.md): login with cursors,
// results once and in order, and moves from broker to broker make-before-break: the old connection goes on until the
// new broker holds everything. The same protocol as tocsin.client; results are shown as they come, so what was received is
// handled.

import { Standings, further, parseCursor, writeCursor } from "./standings.js";

const OPEN_MS = 10_000;
const FADE_MS = 5_000;
const ACK_MS = 1_000;
const LONGEST_MS = 30_000;
const FINAL = new Set(["replaced", "bad_request", "forbidden", "too_large"]);

/**
 * @typedef {{broker: string, address: string, token: string}} Place
 * @typedef {{result: (message: any) => void, gap: (message: any) => void, changed: () => void}} Listener
 */

export class Session {
  /** @param {(avoid: string|null) => Promise<Place>} locate @param {Listener} listener */
  constructor(locate, listener) {
    this.locate = locate;
    this.listener = listener;
    this.standings = new Standings();
    this.serving = /** @type {any} */ (null);
    this.coming = /** @type {any} */ (null);
    this.fading = /** @type {any} */ (null);
    this.trouble = "";
    this.ended = false;
    this.failures = 0;
    this.numbers = 0;
    /** @type {string[]} */ this.brokersSeen = [];
    this.acks = setInterval(() => this.acknowledge(), ACK_MS);
  }

  get broker() {
    return this.serving?.place.broker ?? "";
  }

  async find(avoid = null) {
    if (this.ended) return;
    let place;
    try {
      place = await this.locate(avoid);
    } catch (error) {
      if (error.status === 401 || error.status === 403) return this.giveUp(error.message);
      return this.again(error.message, null, error.retryAfter_s);
    }
    if (!this.serving && !this.coming) this.open(place);
  }

  again(reason, avoid, atLeast_s = 0) {
    if (this.ended) return;
    this.trouble = reason;
    this.failures += 1;
    const waitMs = Math.max(
      (atLeast_s ?? 0) * 1000,
      Math.random() * Math.min(LONGEST_MS, 500 * 2 ** (this.failures - 1)),
    );
    setTimeout(() => this.find(avoid), waitMs);
    this.listener.changed();
  }

  giveUp(reason) {
    this.trouble = reason;
    this.stop();
  }

  stop() {
    this.ended = true;
    clearInterval(this.acks);
    if (this.serving) this.send(this.serving, { op: "logout" });
    for (const line of [this.serving, this.coming, this.fading]) if (line) this.drop(line);
    this.listener.changed();
  }

  // -- connections --

  /** @param {Place} place */
  open(place, withinMs = OPEN_MS) {
    const socket = new WebSocket(sessionAddress(place.address), ["tocsin.json"]);
    const line = {
      socket,
      place,
      live: false,
      closing: null,
      asked: new Map(),
      reached: new Map(),
      holds: new Set(),
      progressMs: 0,
      timer: 0,
    };
    this.coming = line;
    line.timer = setTimeout(() => this.lost(line, "it did not answer in time"), withinMs);
    socket.onopen = () => {
      const resume = this.standings.cursors();
      line.reached = this.standings.begun();
      this.send(line, { op: "login", token: place.token, resume });
    };
    socket.onmessage = (event) => {
      this.heard(line);
      this.received(line, JSON.parse(event.data));
    };
    socket.onclose = (event) => this.lost(line, line.closing?.message ?? event.reason ?? "the connection ended");
    this.listener.changed();
  }

  /** A broker promises a sign of life every so often; twice that without one is too long. */
  heard(line) {
    if (!line.live) return;
    clearTimeout(line.timer);
    line.timer = setTimeout(() => this.lost(line, "it fell silent"), 2 * line.progressMs + 1000);
  }

  drop(line) {
    clearTimeout(line.timer);
    line.socket.onclose = line.socket.onmessage = line.socket.onopen = null;
    line.socket.close();
    if (this.serving === line) this.serving = null;
    if (this.coming === line) this.coming = null;
    if (this.fading === line) this.fading = null;
    for (const { reject } of line.asked.values())
      reject?.(new Error("the connection ended before the broker answered"));
  }

  lost(line, reason) {
    this.drop(line);
    if (this.ended || this.serving || this.coming) return this.listener.changed();
    if (this.fading) {
      // the broker we moved to is gone before the one we left: go on there
      this.serving = this.fading;
      this.fading = null;
      return this.listener.changed();
    }
    if (FINAL.has(line.closing?.code)) return this.giveUp(line.closing.message);
    this.again(`${line.place.broker}: ${reason || "the connection ended"}`, line.live ? null : line.place.broker);
  }

  send(line, request, answer = {}) {
    const id = ++this.numbers;
    line.asked.set(id, answer);
    if (line.socket.readyState === WebSocket.OPEN) line.socket.send(JSON.stringify({ ...request, id }));
  }

  // -- messages --

  received(line, message) {
    switch (message.type) {
      case "result":
        return this.tell("result", this.standings.result(message, line.reached));
      case "gap":
        return this.tell("gap", this.standings.gap(message, line.reached));
      case "progress":
        return this.standings.progress(message.channels, line.holds, line.reached);
      case "move":
        return this.move(message);
      case "closing":
        line.closing = message;
        return;
      case "logged_in":
        return this.loggedIn(line, message);
      case "refused":
        if (!line.live) line.closing = line.closing ?? message;
        break;
    }
    const answer = line.asked.get(message.id);
    if (!answer) return;
    line.asked.delete(message.id);
    if (message.type === "refused") answer.reject?.(new Error(message.message));
    else answer.resolve?.(message);
  }

  loggedIn(line, message) {
    if (line !== this.coming) return;
    this.coming = null;
    Object.assign(line, { live: true, progressMs: message.progress_s * 1000 });
    this.failures = 0;
    this.trouble = "";
    this.brokersSeen.push(line.place.broker);
    if (this.fading) this.drop(this.fading);
    this.fading = this.serving;
    this.serving = line;
    this.heard(line);
    for (const held of message.subscriptions) this.hold(line, held);
    const missing = this.standings.all().filter((one) => !line.holds.has(one.subscription));
    const resumed = missing.map((one) =>
      this.ask({
        op: "subscribe",
        channel: one.channel,
        parameters: one.parameters,
        after: writeCursor(one.received),
      }).then(
        (said) => this.hold(line, said.held),
        (error) => this.resumeFailed(one, error),
      ),
    );
    // Make before break: only when the new broker holds everything is the old one left.
    const old = this.fading;
    if (old)
      Promise.race([Promise.all(resumed), new Promise((resolve) => setTimeout(resolve, FADE_MS))]).then(() => {
        if (this.fading === old) this.drop(old);
      });
    this.listener.changed();
  }

  hold(line, held) {
    line.holds.add(held.subscription);
    const cursor = parseCursor(held.cursor);
    if (cursor) further(line.reached, held.subscription, cursor);
    this.standings.hold(held);
  }

  /** What is new is told; null was here already. */
  tell(kind, message) {
    if (message) this.listener[kind](message);
  }

  resumeFailed(standing, error) {
    if (!this.serving) return; // asked again with the next login
    this.standings.forget(standing.subscription);
    this.trouble = `${standing.channel}: ${error.message}`;
    this.listener.changed();
  }

  /** Another broker is ready for us: connect there; the latest invitation counts. */
  move(message) {
    if (this.coming) this.drop(this.coming);
    this.open(
      { broker: message.broker, address: message.address, token: message.token },
      Math.min(OPEN_MS, message.deadline_s * 1000),
    );
  }

  // -- wishes --

  /** @returns {Promise<any>} */
  ask(request) {
    const line = this.serving;
    if (!line) return Promise.reject(new Error("there is no connection to a broker yet; try again in a moment"));
    return new Promise((resolve, reject) => this.send(line, request, { resolve, reject }));
  }

  async subscribe(channel, parameters) {
    const line = this.serving;
    const said = await this.ask({ op: "subscribe", channel, parameters });
    this.hold(line, said.held);
    this.listener.changed();
    return said.held;
  }

  async unsubscribe(subscription) {
    await this.ask({ op: "unsubscribe", subscription });
    this.standings.forget(subscription);
    this.listener.changed();
  }

  acknowledge() {
    if (!this.serving) return;
    const cursors = this.standings.news();
    if (Object.keys(cursors).length) this.send(this.serving, { op: "ack", cursors });
  }
}

function sessionAddress(address) {
  const socket = address.replace(/^http/, "ws").replace(/\/$/, "");
  return socket.endsWith("/v1/session") ? socket : `${socket}/v1/session`;
}
