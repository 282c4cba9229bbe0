// A subscriber's session with a broker over a WebSocket (docs/clients.md, docs/brokers.md): login with cursors, results
// once and in order, and moves between brokers. A move is make-before-break: the old connection stays open until the
// new broker holds all subscriptions. The protocol is that of tocsin.client. The page shows a result when it receives
// it, so it acknowledges all received results.

import { Subscriptions, advance, parseCursor, writeCursor } from "./progress.js";

const OPEN_MS = 10_000;
const RETIRE_MS = 5_000;
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
    this.subscriptions = new Subscriptions();
    this.serving = /** @type {any} */ (null);
    this.opening = /** @type {any} */ (null);
    this.retiring = /** @type {any} */ (null);
    this.error = "";
    this.ended = false;
    this.failures = 0;
    this.lastId = 0;
    /** @type {string[]} */ this.brokerHistory = [];
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
      if (error.status === 401 || error.status === 403) return this.fail(error.message);
      return this.retry(error.message, null, error.retryAfter_s);
    }
    if (!this.serving && !this.opening) this.open(place);
  }

  retry(reason, avoid, atLeast_s = 0) {
    if (this.ended) return;
    this.error = reason;
    this.failures += 1;
    const waitMs = Math.max(
      (atLeast_s ?? 0) * 1000,
      Math.random() * Math.min(LONGEST_MS, 500 * 2 ** (this.failures - 1)),
    );
    setTimeout(() => this.find(avoid), waitMs);
    this.listener.changed();
  }

  fail(reason) {
    this.error = reason;
    this.stop();
  }

  stop() {
    this.ended = true;
    clearInterval(this.acks);
    if (this.serving) this.send(this.serving, { op: "logout" });
    for (const connection of [this.serving, this.opening, this.retiring]) if (connection) this.drop(connection);
    this.listener.changed();
  }

  // -- connections --

  /** @param {Place} place */
  open(place, withinMs = OPEN_MS) {
    const socket = new WebSocket(sessionAddress(place.address), ["tocsin.json"]);
    const connection = {
      socket,
      place,
      live: false,
      closing: null,
      requests: new Map(),
      reached: new Map(),
      holds: new Set(),
      progressMs: 0,
      timer: 0,
    };
    this.opening = connection;
    connection.timer = setTimeout(() => this.lost(connection, "it did not answer in time"), withinMs);
    socket.onopen = () => {
      const resume = this.subscriptions.cursors();
      connection.reached = this.subscriptions.received();
      this.send(connection, { op: "login", token: place.token, resume });
    };
    socket.onmessage = (event) => {
      this.restartTimer(connection);
      this.received(connection, JSON.parse(event.data));
    };
    socket.onclose = (event) =>
      this.lost(connection, connection.closing?.message ?? event.reason ?? "the connection ended");
    this.listener.changed();
  }

  /** A broker sends progress at the period it announced; after twice that time without a message it counts as lost. */
  restartTimer(connection) {
    if (!connection.live) return;
    clearTimeout(connection.timer);
    const waitMs = 2 * connection.progressMs + 1000;
    connection.timer = setTimeout(() => this.lost(connection, "it sends nothing any more"), waitMs);
  }

  drop(connection) {
    clearTimeout(connection.timer);
    connection.socket.onclose = connection.socket.onmessage = connection.socket.onopen = null;
    connection.socket.close();
    if (this.serving === connection) this.serving = null;
    if (this.opening === connection) this.opening = null;
    if (this.retiring === connection) this.retiring = null;
    for (const { reject } of connection.requests.values())
      reject?.(new Error("the connection ended before the broker answered"));
  }

  lost(connection, reason) {
    this.drop(connection);
    if (this.ended || this.serving || this.opening) return this.listener.changed();
    if (this.retiring) {
      // The new broker was lost before the old one retired: continue with the old one.
      this.serving = this.retiring;
      this.retiring = null;
      return this.listener.changed();
    }
    if (FINAL.has(connection.closing?.code)) return this.fail(connection.closing.message);
    const { broker } = connection.place;
    this.retry(`${broker}: ${reason || "the connection ended"}`, connection.live ? null : broker);
  }

  send(connection, request, answer = {}) {
    const id = ++this.lastId;
    connection.requests.set(id, answer);
    if (connection.socket.readyState === WebSocket.OPEN) connection.socket.send(JSON.stringify({ ...request, id }));
  }

  // -- messages --

  received(connection, message) {
    switch (message.type) {
      case "result":
        return this.notify("result", this.subscriptions.result(message, connection.reached));
      case "gap":
        return this.notify("gap", this.subscriptions.gap(message, connection.reached));
      case "progress":
        return this.subscriptions.progress(message.channels, connection.holds, connection.reached);
      case "move":
        return this.move(message);
      case "closing":
        connection.closing = message;
        return;
      case "logged_in":
        return this.loggedIn(connection, message);
      case "refused":
        if (!connection.live) connection.closing = connection.closing ?? message;
        break;
    }
    const answer = connection.requests.get(message.id);
    if (!answer) return;
    connection.requests.delete(message.id);
    if (message.type === "refused") answer.reject?.(new Error(message.message));
    else answer.resolve?.(message);
  }

  loggedIn(connection, message) {
    if (connection !== this.opening) return;
    this.opening = null;
    Object.assign(connection, { live: true, progressMs: message.progress_s * 1000 });
    this.failures = 0;
    this.error = "";
    this.brokerHistory.push(connection.place.broker);
    if (this.retiring) this.drop(this.retiring);
    this.retiring = this.serving;
    this.serving = connection;
    this.restartTimer(connection);
    for (const held of message.subscriptions) this.hold(connection, held);
    const missing = this.subscriptions.all().filter((progress) => !connection.holds.has(progress.subscription));
    const resumed = missing.map((progress) =>
      this.request({
        op: "subscribe",
        channel: progress.channel,
        parameters: progress.parameters,
        after: writeCursor(progress.received),
      }).then(
        (answer) => this.hold(connection, answer.held),
        (error) => this.resumeFailed(progress, error),
      ),
    );
    // Make before break: close the old connection only when the new broker holds all subscriptions.
    const old = this.retiring;
    if (old)
      Promise.race([Promise.all(resumed), new Promise((resolve) => setTimeout(resolve, RETIRE_MS))]).then(() => {
        if (this.retiring === old) this.drop(old);
      });
    this.listener.changed();
  }

  hold(connection, held) {
    connection.holds.add(held.subscription);
    const cursor = parseCursor(held.cursor);
    if (cursor) advance(connection.reached, held.subscription, cursor);
    this.subscriptions.hold(held);
  }

  /** Pass a new message to the listener; null is a repeat. */
  notify(kind, message) {
    if (message) this.listener[kind](message);
  }

  resumeFailed(progress, error) {
    if (!this.serving) return; // the next login subscribes again
    this.subscriptions.remove(progress.subscription);
    this.error = `${progress.channel}: ${error.message}`;
    this.listener.changed();
  }

  /** Another broker is ready for this subscriber: connect to it. The latest request to move counts. */
  move(message) {
    if (this.opening) this.drop(this.opening);
    this.open(
      { broker: message.broker, address: message.address, token: message.token },
      Math.min(OPEN_MS, message.deadline_s * 1000),
    );
  }

  // -- requests --

  /** @returns {Promise<any>} */
  request(request) {
    const connection = this.serving;
    if (!connection) return Promise.reject(new Error("there is no connection to a broker yet; try again in a moment"));
    return new Promise((resolve, reject) => this.send(connection, request, { resolve, reject }));
  }

  async subscribe(channel, parameters) {
    const connection = this.serving;
    const answer = await this.request({ op: "subscribe", channel, parameters });
    this.hold(connection, answer.held);
    this.listener.changed();
    return answer.held;
  }

  async unsubscribe(subscription) {
    await this.request({ op: "unsubscribe", subscription });
    this.subscriptions.remove(subscription);
    this.listener.changed();
  }

  acknowledge() {
    if (!this.serving) return;
    const cursors = this.subscriptions.takeUnacknowledged();
    if (Object.keys(cursors).length) this.send(this.serving, { op: "ack", cursors });
  }
}

function sessionAddress(address) {
  const socket = address.replace(/^http/, "ws").replace(/\/$/, "");
  return socket.endsWith("/v1/session") ? socket : `${socket}/v1/session`;
}
