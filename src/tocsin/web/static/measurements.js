// The four charts below the map: load per broker, balance, notifications, delivery.

import { Chart } from "./charts.js";
import { byId } from "./dom.js";
import { duration, ratio, rate, throughput } from "./format.js";
import { brokerVariable } from "./palette.js";
import { empty, servingBrokers, shownSpan } from "./state.js";

export class Measurements {
  constructor() {
    this.state = empty();
    this.charts = [this.loads(), this.balance(), this.notifications(), this.delivery()];
    byId("charts").append(...this.charts.map((chart) => chart.element));
  }

  show(state) {
    this.state = state;
    const span = shownSpan(state);
    for (const chart of this.charts) chart.update(span);
  }

  get curves() {
    return this.state.curves;
  }

  loads() {
    return new Chart({
      title: "Load per broker",
      hint:
        "Bytes in and out per second, as defined by the load model. Dashed: the mean, and the lowest mean load " +
        "at which subscribers are moved (β) or shuffled (θ).",
      legend: "dashed: mean",
      format: throughput,
      value: () => throughput(this.curves.mean.last),
      curves: () => [
        ...servingBrokers(this.state).map((broker) => ({
          label: broker.id,
          short: broker.id.replace(/^broker-/, ""),
          colour: brokerVariable(broker.index),
          series: broker.loads,
        })),
        { label: "mean", colour: "var(--ink)", series: this.curves.mean, dashed: true },
      ],
      limits: () =>
        limitsOf([
          ["β", this.state.balance.beta_bytes_per_s],
          ["θ", this.state.balance.theta_bytes_per_s],
        ]),
    });
  }

  balance() {
    return new Chart({
      title: "Imbalance (cov)",
      hint: "Standard deviation of the loads, divided by their mean. Above α subscribers are moved, above γ shuffled.",
      format: ratio,
      least: 0.2,
      value: () => ratio(this.curves.cov.last),
      curves: () => [{ label: "", colour: "var(--accent)", series: this.curves.cov, area: true }],
      limits: () =>
        limitsOf([
          ["α moves", this.state.balance.alpha],
          ["γ shuffles", this.state.balance.gamma],
        ]),
    });
  }

  notifications() {
    return new Chart({
      title: "Notifications",
      hint: "Notifications that all brokers send to subscribers.",
      format: rate,
      least: 1,
      value: () => perSecond(this.curves.notifications.last),
      curves: () => [{ label: "", colour: "var(--accent)", series: this.curves.notifications, area: true }],
    });
  }

  delivery() {
    return new Chart({
      title: "Delivery",
      hint: "From the arrival of a result at a broker until it is sent. p50: all brokers; p95: the slowest broker.",
      format: duration,
      least: 0.01,
      value: () => duration(this.curves.p95.last),
      curves: () => [
        { label: "p50", colour: "var(--accent)", series: this.curves.p50, named: true },
        { label: "p95", colour: "var(--warn)", series: this.curves.p95, dashed: true, named: true },
      ],
    });
  }
}

const perSecond = (value) => (value === undefined ? rate(value) : `${rate(value)}/s`);

/** 0 is no limit; limits with the same value share one line. */
function limitsOf(pairs) {
  const limits = /** @type {Map<number, string>} */ (new Map());
  for (const [label, value] of pairs)
    if (value > 0) limits.set(value, limits.has(value) ? `${limits.get(value)}, ${label}` : label);
  return [...limits].map(([value, label]) => ({ label, value }));
}
