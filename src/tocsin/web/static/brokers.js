// The list of brokers, with their loads on one scale. It is also the text alternative of the map.

import { Sparkline, ceiling } from "./charts.js";
import { byId, h, setText } from "./dom.js";
import { count, duration, percent, plural, rate, throughput } from "./format.js";
import { brokerVariable } from "./palette.js";
import { listedBrokers, shownSpan } from "./state.js";

const ANNOUNCE_MS = 10_000;

export class BrokerList {
  /** @param {(id: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.body = byId("broker-table").tBodies[0];
    /** @type {Map<string, any>} */ this.rows = new Map();
    this.announcedMs = -Infinity;
  }

  show(state, nowMs) {
    const brokers = listedBrokers(state);
    byId("brokers-empty").hidden = brokers.length > 0;
    byId("broker-table").hidden = brokers.length === 0;
    this.arrange(brokers);
    const span = shownSpan(state);
    const mean = state.balance.mean_bytes_per_s;
    let most = 1;
    for (const { loads } of brokers)
      for (let i = loads.from(span.from_s); i < loads.values.length; i += 1) most = Math.max(most, loads.values[i]);
    for (const broker of brokers) this.fill(broker, mean, span, ceiling(most) * 1.08);
    setText(byId("brokers-note"), balancing(state.balance));
    if (nowMs - this.announcedMs > ANNOUNCE_MS) {
      this.announcedMs = nowMs;
      setText(byId("map-text"), summary(state, brokers));
    }
  }

  arrange(brokers) {
    const ids = brokers.map((broker) => broker.id);
    if ([...this.rows.keys()].join("\n") === ids.join("\n")) return;
    this.rows = new Map(ids.map((id) => [id, this.rows.get(id) ?? this.row(id)]));
    this.body.replaceChildren(...[...this.rows.values()].map((row) => row.element));
  }

  row(id) {
    const sparkline = new Sparkline();
    const cells = Object.fromEntries(
      ["load", "people", "sent", "p95"].map((name) => [
        name,
        h("td", { class: name === "sent" ? "num optional" : "num" }),
      ]),
    );
    const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
    const role = h("span", { class: "chip quiet", hidden: true });
    const used = h("span", { class: "chip", hidden: true });
    const chip = h("span", { class: "chip warn", hidden: true });
    const button = h("button", { type: "button", class: "link" }, id);
    const element = h(
      "tr",
      { class: "pick", onclick: () => this.choose(id) },
      h("td", {}, h("span", { class: "name" }, swatch, button, role, used, chip)),
      h("td", { class: "wide" }, sparkline.element),
      cells.load,
      cells.people,
      cells.sent,
      cells.p95,
    );
    return { element, sparkline, swatch, role, used, chip, ...cells };
  }

  fill(broker, mean, span, top) {
    const row = this.rows.get(broker.id);
    const colour = brokerVariable(broker.index);
    row.swatch.style.background = colour;
    row.sparkline.update(broker.loads, mean, span, top, colour);
    const word = stateWord(broker);
    row.chip.hidden = !word;
    row.chip.className = `chip ${broker.state === "dead" ? "bad" : "warn"}`;
    setText(row.chip, word);
    row.role.hidden = !broker.role;
    setText(row.role, broker.standby ? "standby" : (broker.role ?? ""));
    const site = broker.sample.site;
    row.used.hidden = !site;
    row.used.className = `chip ${STATES[site?.state] ?? "good"}`;
    setText(row.used, site ? `${site.state} ${percent(Math.max(...METRICS.map((name) => site[name])))}` : "");
    row.used.title = site ? METRICS.map((name) => `${name} ${percent(site[name])}`).join(", ") : "";
    setText(row.load, throughput(broker.load));
    setText(row.people, count(broker.subscribers));
    setText(row.sent, rate(broker.sample.notifications_per_s));
    setText(row.p95, duration(broker.sample.delivery_s_p95 ?? undefined));
  }
}

/** The balancing policies as text; "" if a recording does not have them. */
function balancing({ on, scheme, shuffle }) {
  if (on === undefined || (on && !scheme)) return "";
  const used = [scheme, shuffle].filter((name) => name && name !== "none").map((name) => name.toUpperCase());
  return on && used.length ? `balancing by ${used.join(" and ")}` : "balancing is off";
}

export const METRICS = ["Ui", "Uo", "Um"];
export const STATES = { OVERLOAD: "bad", HIGH: "warn", BUSY: "warn" };

/** The role of a broker in a site; "" if it has none. */
export const roleWord = ({ role, standby }) => (role ? (standby ? `${role}, standby` : role) : "");

/** The state of a broker; "" if it is alive and accepts subscribers. */
export function stateWord(broker) {
  if (broker.state !== "alive") return broker.state;
  return broker.accepting ? "" : "probation";
}

function summary(state, brokers) {
  const heaviest = [...brokers].sort((a, b) => (b.load ?? 0) - (a.load ?? 0))[0];
  const parts = [
    plural(brokers.length, "broker", "brokers"),
    `${plural(state.people.placed, "person", "people")} on the map`,
    plural(state.emergencies, "emergency so far", "emergencies so far"),
  ];
  const load = heaviest && `${throughput(heaviest.load)} and ${plural(heaviest.subscribers, "person", "people")}`;
  return `${parts.join(", ")}.${heaviest ? ` Most loaded: ${heaviest.id} with ${load}.` : ""}`;
}
