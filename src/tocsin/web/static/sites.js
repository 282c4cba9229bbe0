// The neighbouring sites, below the brokers. The table is hidden for a site without neighbours.

import { byId, h, replace } from "./dom.js";
import { count } from "./format.js";

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
    replace(this.body, ...neighbours.map((neighbour) => this.row(neighbour)));
  }

  row({ site, state, flows, messages, repeated }) {
    return h(
      "tr",
      {},
      h("td", { class: "cut", title: site }, site),
      h("td", {}, h("span", { class: state === "up" ? "good" : "bad" }, state)),
      h("td", { class: "num" }, count(flows)),
      h("td", { class: "num" }, count(messages)),
      h("td", { class: "num optional" }, count(repeated)),
    );
  }
}
