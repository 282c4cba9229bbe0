// Reads GET /v1/watch: server-sent events over fetch, because EventSource cannot send a token. Reconnects with
// exponential back-off and jitter. `tick` rows come every second, so a silent connection counts as lost.

const SHORTEST_MS = 500;
const LONGEST_MS = 20_000;

/** Splits a stream of text, given in pieces, into events. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.name = "message";
    /** @type {string[]} */ this.data = [];
  }

  /** @param {string} text @returns {{event: string, data: string}[]} */
  feed(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    const events = [];
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (this.data.length) events.push({ event: this.name, data: this.data.join("\n") });
        this.name = "message";
        this.data = [];
      } else if (line.startsWith("event:")) this.name = line.slice(6).trim();
      else if (line.startsWith("data:")) this.data.push(line.slice(line[5] === " " ? 6 : 5));
    }
    return events;
  }
}

/**
 * @typedef {{picture: (rows: any[]) => void, rows: (rows: any[]) => void, open: () => void,
 *   lost: (reason: string, waitMs: number) => void, denied: (status: number, message: string) => void}} Watcher
 */

export class Stream {
  /** @param {() => Record<string, string>} headers @param {Watcher} watcher */
  constructor(headers, watcher) {
    this.headers = headers;
    this.watcher = watcher;
    this.failures = 0;
    this.silentMs = 12_000; // set to Infinity for a replay, which sends nothing while it is paused
    this.running = false;
    /** @type {AbortController|null} */ this.abort = null;
    /** @type {number|undefined} */ this.timer = undefined;
    addEventListener("online", () => this.retryNow());
  }

  start() {
    this.stop();
    this.running = true;
    this.connect();
  }

  stop() {
    this.running = false;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  /** The user pressed "Try now", or the machine is online again. */
  retryNow() {
    if (this.running && this.abort === null) {
      clearTimeout(this.timer);
      this.connect();
    }
  }

  async connect() {
    const abort = new AbortController();
    this.abort = abort;
    let silence;
    const restartTimer = () => {
      clearTimeout(silence);
      if (Number.isFinite(this.silentMs))
        silence = setTimeout(() => abort.abort(new Error("no data for a while")), this.silentMs);
    };
    try {
      restartTimer();
      const response = await fetch("/v1/watch", {
        headers: { Accept: "text/event-stream", ...this.headers() },
        signal: abort.signal,
        cache: "no-store",
      });
      if (response.status === 401 || response.status === 403) {
        const answer = await response.json().catch(() => ({}));
        this.running = false;
        this.watcher.denied(response.status, answer?.error?.message ?? "");
        return;
      }
      if (!response.ok || !response.body) throw new Error(`the coordinator answered ${response.status}`);
      await this.read(response.body, restartTimer);
      throw new Error("the stream ended");
    } catch (error) {
      if (this.abort === abort) this.retry(abort.signal.aborted ? abort.signal.reason : error);
    } finally {
      clearTimeout(silence);
      if (this.abort === abort) this.abort = null;
    }
  }

  async read(body, restartTimer) {
    const parser = new EventParser();
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      restartTimer();
      for (const { event, data } of parser.feed(value)) {
        if (event === "picture") {
          this.failures = 0;
          this.watcher.open();
          this.watcher.picture(JSON.parse(data));
        } else if (event === "rows") this.watcher.rows(JSON.parse(data));
      }
    }
  }

  retry(error) {
    if (!this.running) return;
    this.failures += 1;
    const waitMs = Math.min(LONGEST_MS, SHORTEST_MS * 2 ** (this.failures - 1)) * (0.5 + Math.random() / 2);
    this.watcher.lost(error?.message ?? String(error), waitMs);
    this.timer = setTimeout(() => this.connect(), waitMs);
  }
}
