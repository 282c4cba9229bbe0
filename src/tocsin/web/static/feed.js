// What was moved and why, newest first. Screen readers hear a summary at most every ten seconds, not every line.

import { byId, h, setText } from "./dom.js";
import { plural, ratio, time } from "./format.js";

const TELL_MS = 10_000;
const SHOWN = 80;

export class Feed {
  constructor() {
    this.list = byId("feed");
    this.drawn = -1;
    this.newest = 0;
    this.toldMs = 0;
    this.toldKey = 0;
  }

  show(state, nowMs) {
    const { moves, under_way: underWay, waiting } = state.balance;
    setText(
      byId("feed-note"),
      [
        moves !== undefined && `${plural(moves, "move", "moves")} so far`,
        underWay > 0 && `${underWay} under way`,
        waiting > 0 && `${waiting} waiting`,
      ]
        .filter(Boolean)
        .join(", "),
    );
    if (this.drawn === state.changes.feed) return;
    this.drawn = state.changes.feed;
    byId("feed-empty").hidden = state.feed.length > 0;
    const entries = state.feed.slice(0, SHOWN);
    this.list.replaceChildren(...entries.map((entry) => line(entry, entry.key > this.newest && this.newest > 0)));
    this.newest = entries[0]?.key ?? 0;
    this.tell(state.feed, nowMs);
  }

  tell(feed, nowMs) {
    if (nowMs - this.toldMs < TELL_MS) return;
    const fresh = feed.filter((entry) => entry.key > this.toldKey).slice(0, 3);
    this.toldMs = nowMs;
    this.toldKey = feed[0]?.key ?? 0;
    if (fresh.length) setText(byId("feed-live"), fresh.map((entry) => `${sentence(entry)}.`).join(" "));
  }
}

function line(entry, isNew) {
  const why = reason(entry);
  return h(
    "li",
    { class: isNew ? "new" : "" },
    h("time", {}, time(entry.time_s)),
    h("span", { class: KIND_CLASS[entry.kind] ?? "" }, sentence(entry)),
    why && h("span", { class: "why" }, why),
  );
}

const KIND_CLASS = { "move-failed": "warn", "broker-failed": "bad", "broker-back": "good", failover: "warn" };

/** @param {import("./entries.js").Entry} entry */
export function sentence(entry) {
  const who = entry.count > 1 ? plural(entry.count, "person", "people") : (entry.subscriber ?? "");
  switch (entry.kind) {
    case "move":
      return `${who}: ${entry.source} → ${entry.target}`;
    case "move-failed":
      return `${who}: stayed on ${entry.source}, ${entry.target} did not take over`;
    case "failover":
      return entry.target ? `${who}: re-placed on ${entry.target}` : `${who}: no broker left`;
    case "broker-failed":
      return `${entry.broker} failed`;
    case "broker-back":
      return `${entry.broker} is back`;
    case "plan":
      return planned(entry.detail);
    default:
      return entry.kind;
  }
}

/** @param {Record<string, any>} detail */
const planned = ({ policy, moves, cov_before, cov }) =>
  `${planName(policy)}: ${plural(moves ?? 0, "move", "moves")}, cov ${ratio(cov_before)} → ${ratio(cov)}`;

const PLANS = {
  ldm: "Migration by LDM",
  sdm: "Migration by SDM",
  gsh: "Shuffle by GSH",
  affinity: "Migration by affinity",
  multistage: "Plan",
  "multistage-once": "Plan",
  drain: "Drain",
  failover: "Failover",
};
const planName = (policy) => PLANS[policy] ?? (policy ? policy[0].toUpperCase() + policy.slice(1) : "Plan");

function reason(entry) {
  if (!entry.note) return "";
  return entry.count > 1 && entry.kind === "move" ? `first: ${entry.note}` : entry.note;
}
