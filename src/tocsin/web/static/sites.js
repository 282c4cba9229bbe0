// The neighbouring sites and their brokers, below the brokers. The table is hidden for a site without neighbours.

import { METRICS, STATES } from "./brokers.js";
import { byId, h, replace } from "./dom.js";
import { count, duration, percent } from "./format.js";

export class SiteList {
  constructor() {
    this.body = byId("site-table").tBodies[0];
    this.drawn = null;
  }

  show(state) {
    if (this.drawn === state.sites) return;
    this.drawn = state.sites;
    const neighbours = state.sites?.neighbours ?? [];
    byId("site-table").hidden = neighbours.length === 0;
    replace(this.body, ...neighbours.flatMap((neighbour) => [siteRow(neighbour), ...brokerRows(neighbour)]));
  }
}

function siteRow({ site, state, flows, messages, repeated, round_trip_s }) {
  return h(
    "tr",
    {},
    h("td", { class: "cut", title: site }, site),
    h("td", {}, h("span", { class: state === "up" ? "good" : "bad" }, state)),
    h("td", { class: "num" }, duration(round_trip_s ?? undefined)),
    h("td", { class: "num" }, count(flows)),
    h("td", { class: "num" }, count(messages)),
    h("td", { class: "num optional" }, count(repeated)),
  );
}

/** The brokers of a neighbour, as it reports them: role, load state, and the highest of Ui, Uo and Um. */
function brokerRows({ site, brokers }) {
  return (brokers ?? []).map((broker) =>
    h(
      "tr",
      { class: "of-site" },
      h("td", { class: "cut", title: `${broker.broker} of ${site}` }, broker.broker),
      h(
        "td",
        { colspan: 5, title: METRICS.map((name) => `${name} ${percent(broker[name])}`).join(", ") },
        h("span", { class: "chip quiet" }, broker.role),
        " ",
        h(
          "span",
          { class: `chip ${STATES[broker.state] ?? "good"}` },
          `${broker.state} ${percent(Math.max(...METRICS.map((name) => broker[name])))}`,
        ),
      ),
    ),
  );
}
