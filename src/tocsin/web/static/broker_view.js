// One broker in the drawer: its load, subscribers, backend subscriptions with their λ, and a button to drain it.

import { h, quiet, replace, setText, showFacts, table } from "./dom.js";
import { bytes, count, duration, number, percent, plural, rate, throughput } from "./format.js";
import { roleWord, stateWord } from "./brokers.js";
import { parameterText } from "./notification.js";

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
    this.message = h("p", { class: "said", role: "status" });
    this.drain = h("button", { type: "button", id: "drain", onclick: () => this.toggleDrain() }, "Drain");
    this.people = h("div", {}, quiet("Loading"));
    this.held = h("div", {}, quiet("Loading"));
    const live = this.isLive();
    const refusal = this.api.isAdmin ? "" : "Draining needs a token with the scope admin. Your token can only read.";
    this.drain.disabled = Boolean(refusal);
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
            refusal || "Moves all subscribers to other brokers and accepts no new ones. Then it can be stopped.",
          ),
          h("div", { class: "row" }, this.drain),
          this.message,
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

  /** Show the newest rows about the broker; called with every frame. */
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
      ...siteFacts(broker),
      ["Capacity", number(broker.capacity)],
      ["Address", broker.address || "–"],
    ];
    showFacts(this.facts, facts);
    setText(this.drain, broker.state === "draining" ? "Stop draining" : "Drain");
  }

  async refresh() {
    if (!this.isLive() || !this.drawer.shows(`broker ${this.id}`)) return;
    const path = `/v1/brokers/${encodeURIComponent(this.id)}`;
    await Promise.all([
      this.fill(this.people, `${path}/subscribers?limit=${LIMIT}`, (answer) =>
        listing(
          answer.subscribers,
          answer.total,
          "No subscribers.",
          ["Subscriber", "Online", "FE", "Load"],
          ({ subscriber, online, subscriptions, load_bytes_per_s }) => [
            subscriber,
            online ? "yes" : "no",
            count(subscriptions),
            throughput(load_bytes_per_s),
          ],
        ),
      ),
      this.fill(this.held, `${path}/subscriptions?limit=${LIMIT}`, (answer) =>
        listing(
          answer.subscriptions,
          answer.total,
          "No backend subscriptions.",
          ["Subscription", "Channel", "FE", "λ"],
          ({ subscription, parameters, channel, frontend, rate_bytes_per_s }) => [
            parameters ? parameterText(parameters) : String(subscription).slice(0, 8),
            channel,
            count(frontend),
            throughput(rate_bytes_per_s),
          ],
        ),
      ),
    ]);
  }

  async fill(element, path, draw) {
    try {
      replace(element, draw(await this.api.get(path)));
    } catch (error) {
      replace(element, quiet(error.message));
    }
  }

  async toggleDrain() {
    const on = this.state().brokers.get(this.id)?.state !== "draining";
    this.drain.disabled = true;
    try {
      const answer = await this.api.post(`/v1/brokers/${encodeURIComponent(this.id)}/drain`, { on });
      setText(
        this.message,
        on
          ? `Draining: ${plural(answer.subscribers, "subscriber", "subscribers")} to move.`
          : "The broker accepts new subscribers again.",
      );
    } catch (error) {
      setText(this.message, error.message);
    } finally {
      this.drain.disabled = false;
    }
  }
}

/** The role of a broker in a site, its utilisations and capacities, and what it limits. */
function siteFacts(broker) {
  const site = broker.sample.site;
  const role = broker.role ? [["Role", roleWord(broker)]] : [];
  if (!site) return role;
  const { offered, capacity } = site;
  const used = (name, load, most, unit) => [
    name,
    `${percent(site[name])}: ${unit(load)} of ${most === null ? "any rate" : unit(most)}`,
  ];
  const messages = (per_s) => `${rate(per_s)}/s`;
  return [
    ...role,
    ["Load of topics", site.state],
    used("Ui", offered.in_bytes_per_s, capacity.in_bytes_per_s, throughput),
    used("Uo", offered.out_bytes_per_s, capacity.out_bytes_per_s, throughput),
    used("Um", offered.matched_per_s, capacity.matched_per_s, messages),
    ["Waiting", `${bytes(site.waiting_bytes)}, ${plural(site.waiting_messages, "message", "messages")}`],
    ["Publishers with a limit", count(site.limited_publishers)],
  ];
}

function listing(items, total, none, heads, cells) {
  if (!items.length) return quiet(none);
  const columns = heads.map((text, index) => [text, index > 1 ? "num" : "hold"]);
  const rows = table(columns, items.map(cells));
  return total > items.length ? h("div", {}, rows, quiet(`and ${count(total - items.length)} more`)) : rows;
}
