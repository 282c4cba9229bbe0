// One channel in the drawer: its query, how it is doing, its backend subscriptions, executions and latest results.

import { h, replace } from "./dom.js";
import { cadence } from "./channels.js";
import { count, duration, moment, plural, time, value } from "./format.js";

const REFRESH_MS = 4_000;
const LIMIT = 20;

export class ChannelView {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./drawer.js").Drawer} drawer
   * @param {() => any} state
   * @param {() => boolean} isLive
   * @param {(name: string) => void} subscribe
   */
  constructor(api, drawer, state, isLive, subscribe) {
    this.api = api;
    this.drawer = drawer;
    this.state = state;
    this.isLive = isLive;
    this.subscribe = subscribe;
  }

  open(name) {
    this.name = name;
    this.facts = h("dl", { class: "facts" });
    this.query = h("div");
    this.held = h("div");
    this.executions = h("div");
    this.results = h("div");
    const live = this.isLive();
    const body = [
      this.facts,
      live &&
        h(
          "div",
          { class: "row" },
          h("button", { type: "button", onclick: () => this.subscribe(name) }, "Subscribe to it"),
        ),
      live && h("h3", {}, "Query"),
      this.query,
      live && h("h3", {}, "Backend subscriptions"),
      this.held,
      live && h("h3", {}, "Latest executions with results"),
      this.executions,
      live && h("h3", {}, "Latest results"),
      this.results,
    ].filter(Boolean);
    const timer = setInterval(() => this.refresh(), REFRESH_MS);
    this.drawer.open(`channel ${name}`, name, body, () => clearInterval(timer));
    this.show();
    if (live) this.begin();
  }

  show() {
    const channel = this.state().channels.get(this.name);
    if (!channel || !this.drawer.shows(`channel ${this.name}`)) return;
    const facts = [
      ["Runs", channel.period_s ? `every ${cadence(channel)}` : "as records arrive"],
      ["Backend subscriptions", count(channel.subscriptions)],
      ["Executions", count(channel.executions)],
      ["Without news", count(channel.empty)],
      ["Last began", channel.last_started_s ? moment(channel.last_started_s) : "–"],
      ["Took", duration(channel.last_duration_s ?? undefined)],
      ["Results", count(channel.last_results ?? undefined)],
      ["Overruns", count(channel.missed_ticks ?? 0)],
      ["Failures", count(channel.failures ?? 0)],
      channel.last_error && ["Last error", String(channel.last_error)],
    ].filter(Boolean);
    this.facts.replaceChildren(...facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
  }

  async begin() {
    try {
      const said = await this.api.get(`/v1/cluster/channels/${encodeURIComponent(this.name)}`);
      const parameters = said.parameters.map((one) => `${one.name} ${one.type}`).join(", ");
      replace(
        this.query,
        h("pre", {}, said.query),
        h("p", { class: "quiet" }, parameters ? `Parameters: ${parameters}` : "No parameters."),
      );
    } catch (error) {
      replace(this.query, h("p", { class: "quiet" }, error.message));
    }
    this.refresh();
  }

  async refresh() {
    if (!this.isLive() || !this.drawer.shows(`channel ${this.name}`)) return;
    const channel = encodeURIComponent(this.name);
    try {
      const [held, ran] = await Promise.all([
        this.api.get(`/v1/cluster/subscriptions?channel=${channel}&limit=${LIMIT}`),
        this.api.get(`/v1/cluster/executions?channel=${channel}&limit=5`),
      ]);
      replace(this.held, heldTable(held.subscriptions));
      replace(this.executions, executionTable(ran.executions));
      await this.latest(held.subscriptions, ran.executions);
    } catch (error) {
      replace(this.results, h("p", { class: "quiet" }, error.message));
    }
  }

  /** Results of the newest execution, of the subscriptions listed. */
  async latest(subscriptions, executions) {
    if (!subscriptions.length || !executions.length)
      return replace(this.results, h("p", { class: "quiet" }, "No results yet."));
    const newest = executions[0];
    const after = `${newest.epoch}-${newest.execution * 2 ** 20}`;
    const wanted = subscriptions.map((one) => `subscription=${one.id}`).join("&");
    const said = await this.api.get(
      `/v1/cluster/results?channel=${encodeURIComponent(this.name)}&after=${after}&${wanted}`,
    );
    const lines = (typeof said === "string" ? said.split("\n") : [JSON.stringify(said)])
      .filter(Boolean)
      .map((line) => JSON.parse(line))
      .filter((line) => line.result);
    replace(
      this.results,
      ...(lines.length
        ? lines.slice(0, 8).map((line) =>
            h(
              "pre",
              { class: "card" },
              Object.entries(line.result)
                .map(([name, one]) => `${name}: ${value(one)}`)
                .join("\n"),
            ),
          )
        : [h("p", { class: "quiet" }, "None for the subscriptions listed above.")]),
    );
  }
}

function heldTable(subscriptions) {
  if (!subscriptions.length) return h("p", { class: "quiet" }, "Nobody has subscribed.");
  return h(
    "table",
    { class: "grid" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Parameters"), h("th", { scope: "col" }, "Held by"))),
    h(
      "tbody",
      {},
      ...subscriptions.map((one) =>
        h(
          "tr",
          {},
          h("td", { class: "hold" }, parametersOf(one)),
          h("td", { class: "hold" }, one.brokers.join(", ") || "–"),
        ),
      ),
    ),
  );
}

function parametersOf(one) {
  const given = Array.isArray(one.parameters)
    ? one.parameters.map(value)
    : Object.entries(one.parameters ?? {}).map(([name, any]) => `${name} ${value(any)}`);
  return given.join(", ") || one.id.slice(0, 8);
}

function executionTable(executions) {
  if (!executions.length) return h("p", { class: "quiet" }, "None so far.");
  return h(
    "table",
    { class: "grid" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["Execution", "Began", "Took", "Results"].map((text, index) =>
          h("th", { scope: "col", class: index ? "num" : "" }, text),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      ...executions.map((one) =>
        h(
          "tr",
          {},
          h("td", {}, count(one.execution)),
          h("td", { class: "num" }, one.started_s ? time(one.started_s) : "–"),
          h(
            "td",
            { class: "num" },
            duration(one.duration_s ?? (one.finished_s && one.started_s ? one.finished_s - one.started_s : undefined)),
          ),
          h("td", { class: "num" }, plural(one.results ?? 0, "result", "results")),
        ),
      ),
    ),
  );
}
