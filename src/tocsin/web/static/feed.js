// Moves and plans with their reasons, newest first. Screen readers get a summary at most every ten seconds.

import { byId, h, setText } from "./dom.js";
import { plural, ratio, time } from "./format.js";

const ANNOUNCE_MS = 10_000;
const SHOWN = 80;

export class Feed {
  constructor() {
    this.list = byId("feed");
    this.drawn = -1;
    this.newest = 0;
    this.announcedMs = 0;
    this.announcedKey = 0;
  }

  show(state, nowMs) {
    const { moves, under_way: underWay, waiting } = state.balance;
    setText(
      byId("feed-note"),
      [
        moves !== undefined && `${plural(moves, "move", "moves")} so far`,
        underWay > 0 && `${underWay} in progress`,
        waiting > 0 && `${waiting} waiting`,
      ]
        .filter(Boolean)
        .join(", "),
    );
    if (this.drawn === state.changes.feed) return;
    this.drawn = state.changes.feed;
    byId("feed-empty").hidden = state.feed.length > 0;
    const entries = state.feed.slice(0, SHOWN);
    this.list.replaceChildren(...entries.map((entry) => item(entry, entry.key > this.newest && this.newest > 0)));
    this.newest = entries[0]?.key ?? 0;
    this.announce(state.feed, nowMs);
  }

  announce(feed, nowMs) {
    if (nowMs - this.announcedMs < ANNOUNCE_MS) return;
    const fresh = feed.filter((entry) => entry.key > this.announcedKey).slice(0, 3);
    this.announcedMs = nowMs;
    this.announcedKey = feed[0]?.key ?? 0;
    if (fresh.length) setText(byId("feed-live"), fresh.map((entry) => `${sentence(entry)}.`).join(" "));
  }
}

function item(entry, isNew) {
  const reason = reasonOf(entry);
  return h(
    "li",
    { class: isNew ? "new" : "" },
    h("time", {}, time(entry.time_s)),
    h("span", { class: KIND_CLASS[entry.kind] ?? "" }, sentence(entry)),
    reason && h("span", { class: "why" }, reason),
  );
}

const KIND_CLASS = { "move-failed": "warn", "broker-failed": "bad", "broker-back": "good", failover: "warn", "topic-stays": "warn", "topic-failover": "warn", "offload-failed": "warn", "offload-refused": "warn" };

/** @param {import("./state.js").Entry} entry */
function sentence(entry) {
  const words = entry.topic === undefined ? ["person", "people"] : ["topic", "topics"];
  const subject = entry.count > 1 ? plural(entry.count, words[0], words[1]) : (entry.topic ?? entry.subscriber ?? "");
  switch (entry.kind) {
    case "move":
    case "topic-move":
      return `${subject}: ${entry.source} → ${entry.target}`;
    case "move-failed":
    case "topic-stays":
      return `${subject}: stayed on ${entry.source}, the move to ${entry.target} failed`;
    case "failover":
      return entry.target ? `${subject}: re-placed on ${entry.target}` : `${subject}: no broker left`;
    case "offload":
      return `Receivers of ${subject}: ${entry.source} → ${entry.target}`;
    case "offload-failed":
      return `${entry.source}: an offloading did not finish`;
    case "limits":
      return "Congestion control";
    case "offload-waits":
      return `${entry.source} waits for a broker that can help`;
    case "offload-refused":
      return `${entry.source}: no broker can help`;
    case "topic-failover":
      return `${subject}: ${entry.target} is the new home`;
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

function reasonOf(entry) {
  if (!entry.note) return "";
  return entry.count > 1 && entry.kind.endsWith("move") ? `first: ${entry.note}` : entry.note;
}
