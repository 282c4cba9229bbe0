// One channel in the drawer: its query, state, backend subscriptions, executions and latest results.

import { h, quiet, replace, showFacts, table } from "./dom.js";
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
          h("button", { type: "button", onclick: () => this.subscribe(name) }, "Subscribe to this channel"),
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
    if (live) this.load();
  }

  show() {
    const channel = this.state().channels.get(this.name);
    if (!channel || !this.drawer.shows(`channel ${this.name}`)) return;
    const facts = [
      ["Runs", channel.period_s ? `every ${cadence(channel)}` : "as records arrive"],
      ["Backend subscriptions", count(channel.subscriptions)],
      ["Executions", count(channel.executions)],
      ["Without results", count(channel.empty)],
      ["Last started", channel.last_started_s ? moment(channel.last_started_s) : "–"],
      ["Took", duration(channel.last_duration_s ?? undefined)],
      ["Results", count(channel.last_results ?? undefined)],
      channel.late_since_s && ["Late since", moment(channel.late_since_s)],
      ["Overruns", count(channel.missed_ticks ?? 0)],
      ["Failures", count(channel.failures ?? 0)],
      channel.last_error && ["Last error", String(channel.last_error)],
    ].filter(Boolean);
    showFacts(this.facts, facts);
  }

  async load() {
    try {
      const channel = await this.api.get(`/v1/cluster/channels/${encodeURIComponent(this.name)}`);
      const parameters = channel.parameters
        .map(({ name, type, bound }) => `${name} ${type}${bound ? " (the session's user)" : ""}`)
        .join(", ");
      replace(
        this.query,
        h("pre", {}, channel.query),
        quiet(parameters ? `Parameters: ${parameters}` : "No parameters."),
      );
    } catch (error) {
      replace(this.query, quiet(error.message));
    }
    this.refresh();
  }

  async refresh() {
    if (!this.isLive() || !this.drawer.shows(`channel ${this.name}`)) return;
    const channel = encodeURIComponent(this.name);
    try {
      const [held, latest] = await Promise.all([
        this.api.get(`/v1/cluster/subscriptions?channel=${channel}&limit=${LIMIT}`),
        this.api.get(`/v1/cluster/executions?channel=${channel}&limit=5`),
      ]);
      replace(this.held, heldTable(held.subscriptions));
      replace(this.executions, executionTable(latest.executions));
      await this.showResults(held.subscriptions, latest.executions);
    } catch (error) {
      replace(this.results, quiet(error.message));
    }
  }

  /** Show the results of the newest execution for the listed subscriptions. */
  async showResults(subscriptions, executions) {
    if (!subscriptions.length || !executions.length)
      return replace(this.results, quiet("No results yet."));
    const newest = executions[0];
    const after = `${newest.epoch}-${newest.execution * 2 ** 20}`;
    const query = subscriptions.map(({ id }) => `subscription=${id}`).join("&");
    const answer = await this.api.get(
      `/v1/cluster/results?channel=${encodeURIComponent(this.name)}&after=${after}&${query}`,
    );
    const lines = (typeof answer === "string" ? answer.split("\n") : [JSON.stringify(answer)])
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
                .map(([name, content]) => `${name}: ${value(content)}`)
                .join("\n"),
            ),
          )
        : [quiet("No results for the subscriptions listed above.")]),
    );
  }
}

function heldTable(subscriptions) {
  if (!subscriptions.length) return quiet("No subscriptions.");
  return table(
    [
      ["Parameters", "hold"],
      ["Held by", "hold"],
    ],
    subscriptions.map((subscription) => [parametersOf(subscription), subscription.brokers.join(", ") || "–"]),
  );
}

function parametersOf({ id, parameters }) {
  const texts = Array.isArray(parameters)
    ? parameters.map(value)
    : Object.entries(parameters ?? {}).map(([name, content]) => `${name} ${value(content)}`);
  return texts.join(", ") || id.slice(0, 8);
}

function executionTable(executions) {
  if (!executions.length) return quiet("No executions yet.");
  return table(
    [
      ["Execution", ""],
      ["Started", "num"],
      ["Took", "num"],
      ["Results", "num"],
    ],
    executions.map((execution) => [
      count(execution.execution),
      execution.started_s ? time(execution.started_s) : "–",
      duration(durationOf(execution)),
      plural(execution.results ?? 0, "result", "results"),
    ]),
  );
}

function durationOf({ duration_s, started_s, finished_s }) {
  return duration_s ?? (finished_s && started_s ? finished_s - started_s : undefined);
}
