// One broker in the drawer: its load, whom it serves, the backend subscriptions it holds with their λ; drain.

import { h, replace, setText } from "./dom.js";
import { count, duration, number, plural, rate, throughput } from "./format.js";
import { stateWord } from "./brokers.js";
import { words } from "./notification.js";

const REFRESH_MS = 3_000;
const LIMIT = 100;

export class BrokerView {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./drawer.js").Drawer} drawer
   * @param {() => any} state
   * @param {() => boolean} isLive
   */
  constructor(api, drawer, state, isLive) {
    this.api = api;
    this.drawer = drawer;
    this.state = state;
    this.isLive = isLive;
  }

  open(id, closed) {
    this.id = id;
    this.facts = h("dl", { class: "facts" });
    this.said = h("p", { class: "said", role: "status" });
    this.drain = h("button", { type: "button", id: "drain", onclick: () => this.toggleDrain() }, "Drain");
    this.people = h("div", {}, h("p", { class: "quiet" }, "Asking the coordinator"));
    this.held = h("div", {}, h("p", { class: "quiet" }, "Asking the broker"));
    const live = this.isLive();
    const why = this.api.isAdmin ? "" : "Draining needs a token with the scope admin; yours may only look.";
    this.drain.disabled = Boolean(why);
    const body = [
      this.facts,
      live &&
        h(
          "div",
          {},
          h("h3", {}, "Drain"),
          h(
            "p",
            { class: "quiet" },
            why || "Moves everybody to other brokers and sends nobody new, so that it can be stopped.",
          ),
          h("div", { class: "row" }, this.drain),
          this.said,
        ),
      live && h("h3", {}, "Subscribers, heaviest first"),
      live && this.people,
      live && h("h3", {}, "Backend subscriptions, heaviest first"),
      live && this.held,
    ].filter(Boolean);
    const timer = setInterval(() => this.refresh(), REFRESH_MS);
    this.drawer.open(`broker ${id}`, id, body, () => {
      clearInterval(timer);
      closed();
    });
    this.show();
    this.refresh();
  }

  /** What the rows say; called with every frame. */
  show() {
    const broker = this.state().brokers.get(this.id);
    if (!broker || !this.drawer.shows(`broker ${this.id}`)) return;
    const sample = broker.sample;
    const facts = [
      ["State", stateWord(broker) || "alive"],
      ["Load", throughput(broker.load)],
      ["In", throughput(sample.in_bytes_per_s)],
      ["Out", throughput(sample.out_bytes_per_s)],
      ["Subscribers", count(broker.subscribers)],
      ["Sessions", count(sample.sessions)],
      ["Frontend subscriptions", count(sample.frontend_subscriptions)],
      ["Backend subscriptions", count(sample.backend_subscriptions)],
      ["Notifications/s", rate(sample.notifications_per_s)],
      ["Delivery p50", duration(sample.delivery_s_p50 ?? undefined)],
      ["Delivery p95", duration(sample.delivery_s_p95 ?? undefined)],
      ["Capacity", number(broker.capacity)],
      ["Address", broker.address || "–"],
    ];
    this.facts.replaceChildren(...facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
    setText(this.drain, broker.state === "draining" ? "Stop draining" : "Drain");
  }

  async refresh() {
    if (!this.isLive() || !this.drawer.shows(`broker ${this.id}`)) return;
    const path = `/v1/brokers/${encodeURIComponent(this.id)}`;
    await Promise.all([
      this.fill(this.people, `${path}/subscribers?limit=${LIMIT}`, (said) =>
        listing(
          said.subscribers,
          said.total,
          "Nobody is served here.",
          ["Subscriber", "Online", "FE", "Load"],
          (one) => [
            one.subscriber,
            one.online ? "yes" : "no",
            count(one.subscriptions),
            throughput(one.load_bytes_per_s),
          ],
        ),
      ),
      this.fill(this.held, `${path}/subscriptions?limit=${LIMIT}`, (said) =>
        listing(
          said.subscriptions,
          said.total,
          "Nothing is held here.",
          ["Subscription", "Channel", "FE", "λ"],
          (one) => [
            one.parameters ? words(one.parameters) : String(one.subscription).slice(0, 8),
            one.channel,
            count(one.frontend),
            throughput(one.rate_bytes_per_s),
          ],
        ),
      ),
    ]);
  }

  async fill(element, path, draw) {
    try {
      const said = await this.api.get(path);
      replace(element, draw(said));
    } catch (error) {
      replace(element, h("p", { class: "quiet" }, error.message));
    }
  }

  async toggleDrain() {
    const on = this.state().brokers.get(this.id)?.state !== "draining";
    this.drain.disabled = true;
    try {
      const said = await this.api.post(`/v1/brokers/${encodeURIComponent(this.id)}/drain`, { on });
      setText(
        this.said,
        on
          ? `Draining: ${plural(said.subscribers, "subscriber", "subscribers")} to move.`
          : "It takes newcomers again.",
      );
    } catch (error) {
      setText(this.said, error.message);
    } finally {
      this.drain.disabled = false;
    }
  }
}

function listing(items, total, none, heads, cells) {
  if (!items.length) return h("p", { class: "quiet" }, none);
  const rows = items.map((item) =>
    h("tr", {}, ...cells(item).map((text, index) => h("td", { class: index > 1 ? "num" : "hold" }, text))),
  );
  const table = h(
    "table",
    { class: "grid" },
    h(
      "thead",
      {},
      h("tr", {}, ...heads.map((text, index) => h("th", { scope: "col", class: index > 1 ? "num" : "" }, text))),
    ),
    h("tbody", {}, ...rows),
  );
  return total > items.length
    ? h("div", {}, table, h("p", { class: "quiet" }, `and ${count(total - items.length)} more`))
    : table;
}
