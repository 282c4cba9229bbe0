// The list of channels with their last executions, and the state of the data cluster and Spark.

import { byId, h, replace, setText } from "./dom.js";
import { count, duration, number, time, value } from "./format.js";

export class ChannelList {
  /** @param {(name: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.body = byId("channel-table").tBodies[0];
    this.drawn = -1;
  }

  show(state) {
    if (this.drawn === state.changes.channels) return;
    this.drawn = state.changes.channels;
    const channels = [...state.channels].sort(([a], [b]) => a.localeCompare(b));
    byId("channels-empty").hidden = channels.length > 0;
    byId("channel-table").hidden = channels.length === 0;
    replace(this.body, ...channels.map(([name, channel], index) => this.row(name, channel, index)));
    showCluster(byId("spark"), state.cluster);
  }

  row(name, channel, index) {
    const overruns = channel.missed_ticks ?? 0;
    const failed = Boolean(channel.last_error) || channel.failures > 0;
    return h(
      "tr",
      { class: "pick", onclick: () => this.choose(name) },
      h(
        "td",
        { class: "cut", title: name },
        h("button", { type: "button", class: "link", id: `channel-${index}` }, name),
        failed && h("span", { class: "bad" }, " failed"),
        channel.late_since_s && h("span", { class: "bad" }, ` late since ${time(channel.late_since_s)}`),
      ),
      h("td", { class: "num" }, count(channel.subscriptions)),
      h("td", { class: "num" }, channel.last_started_s ? time(channel.last_started_s) : "–"),
      h("td", { class: "num" }, duration(channel.last_duration_s ?? undefined)),
      h("td", { class: "num" }, count(channel.last_results ?? undefined)),
      h("td", { class: overruns > 0 ? "num warn" : "num" }, count(overruns)),
    );
  }
}

export const cadence = (channel) => (channel.period_s ? duration(channel.period_s) : "continuous");

function showCluster(element, cluster) {
  element.className = `quiet ${cluster?.ready === false ? "bad" : ""}`;
  if (!cluster) return setText(element, "");
  const spark = cluster.spark ?? {};
  const summary =
    cluster.ready === false ? `Spark is not ready: ${(cluster.reasons ?? []).join("; ")}` : "Spark is ready";
  const more = [
    spark.version && `${spark.version}`,
    spark.master,
    Number.isFinite(cluster.records_per_s) && `${number(cluster.records_per_s)} records/s`,
  ].filter(Boolean);
  setText(element, [summary, ...more].join(" · "));
  element.title = Object.entries(spark)
    .map(([name, content]) => `${name}: ${value(content)}`)
    .join("\n");
}
