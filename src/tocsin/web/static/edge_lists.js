// The lists beside the tree: moves and generations, queries, and alerts of a channel that the page subscribes to.

import { byId, h, replace, setText } from "./dom.js";
import { count, plural, time, value } from "./format.js";
import { headline } from "./notification.js";
import { Session } from "./session.js";

const SHOWN = 80;
const ANNOUNCE_MS = 10_000;
const KIND_CLASS = { dead: "bad", back: "good", generation: "warn" };

export class EdgeFeed {
  constructor() {
    this.list = byId("feed");
    this.newest = 0;
    this.announcedMs = 0;
  }

  show(state, nowMs) {
    setText(byId("feed-note"), state.moved ? `${plural(state.moved, "move", "moves")} of operators` : "");
    const newest = state.feed[0]?.key ?? 0;
    if (newest === this.newest) return;
    byId("feed-empty").hidden = state.feed.length > 0;
    const item = ({ key, time_s, kind, text, why }) =>
      h(
        "li",
        { class: key > this.newest && this.newest > 0 ? "new" : "" },
        h("time", {}, time(time_s)),
        h("span", { class: KIND_CLASS[kind] ?? "" }, text),
        why && h("span", { class: "why" }, why),
      );
    this.list.replaceChildren(...state.feed.slice(0, SHOWN).map(item));
    this.newest = newest;
    if (nowMs - this.announcedMs > ANNOUNCE_MS) {
      this.announcedMs = nowMs;
      setText(byId("feed-live"), `${state.feed[0].text}.`);
    }
  }
}

export class QueryList {
  /** @param {(operator: string) => string} colourOf */
  constructor(colourOf) {
    this.body = byId("query-table").tBodies[0];
    this.colourOf = colourOf;
  }

  show(state) {
    byId("queries-empty").hidden = state.queries.length > 0;
    byId("query-table").hidden = state.queries.length === 0;
    setText(byId("queries-note"), state.outbox ? `${plural(state.outbox, "result", "results")} not published yet` : "");
    replace(this.body, ...state.queries.map((query) => this.row(query)));
  }

  row({ name, sql, dataset, floor, rows }) {
    const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = this.colourOf(`${name}/`);
    return h(
      "tr",
      { title: sql },
      h("td", {}, h("span", { class: "name" }, swatch, name)),
      h("td", { class: "optional" }, dataset),
      h("td", { class: "num" }, floor === null || floor === undefined ? "–" : time(floor / 1e6)),
      h("td", { class: "num" }, count(rows)),
    );
  }
}

/**
 * Alerts come over the page's own session with a broker, as for any subscriber. The address of the page names the broker,
 * the user's token and the channel in `#alerts=…`, because a tree knows no brokers.
 */
export class Alerts {
  constructor() {
    this.list = byId("alerts");
    this.received = 0;
    this.session = /** @type {Session|null} */ (null);
  }

  /** @param {{broker: string, address: string, token: string, channel: string, parameters: Record<string, any>}} wanted */
  async open({ broker, address, token, channel, parameters }) {
    this.session = new Session(async () => ({ broker, address, token }), {
      result: (message) => this.add(message),
      gap: () => this.list.prepend(h("li", { class: "note" }, "Alerts are missing here.")),
      changed: () => this.show(),
    });
    await this.session.find();
    const subscribe = async () => {
      if (this.session?.ended) return;
      try {
        await this.session?.subscribe(channel, parameters);
      } catch {
        setTimeout(subscribe, 500);
      }
    };
    subscribe();
  }

  add({ result }) {
    this.received += 1;
    const rest = Object.entries(result).filter(([, content]) => content !== headline(result));
    const item = h(
      "li",
      { class: "alert new" },
      h("time", {}, time(Date.now() / 1000)),
      h("b", {}, headline(result)),
      h("span", { class: "why" }, rest.map(([name, content]) => `${name} ${value(content)}`).join(" · ")),
    );
    this.list.prepend(item);
    while (this.list.childElementCount > SHOWN) this.list.lastElementChild?.remove();
    this.show();
  }

  show() {
    byId("alerts-empty").hidden = this.received > 0;
    const { session } = this;
    const problem = session && !session.broker ? session.error || "connecting" : "";
    setText(byId("alerts-note"), problem || `${count(this.received)} since this page was opened`);
  }
}
