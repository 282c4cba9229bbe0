// Small charts: curves over the last minutes, with limits as dashed lines. The SVG has units of 0–100 and is stretched
// to its box, so a resize needs no drawing; labels are HTML on top of it. The header shows the values at the pointer.

import { h, s, setText } from "./dom.js";
import { time } from "./format.js";

/**
 * @typedef {{label: string, colour: string, series: import("./series.js").Series, dashed?: boolean, area?: boolean,
 *   named?: boolean}} Curve `named`: the label is shown at the end of the curve
 * @typedef {{label: string, value: number|undefined}} Limit
 * @typedef {{title: string, format: (value: number|undefined) => string, curves: () => Curve[], limits?: () => Limit[],
 *   value: () => string, least?: number, hint?: string, legend?: string}} Spec
 */

export class Chart {
  /** @param {Spec} spec */
  constructor(spec) {
    this.spec = spec;
    this.value = h("span", { class: "value" });
    this.lines = s("g");
    this.cross = s("line", { class: "cross", y1: 0, y2: 100, visibility: "hidden" });
    this.svg = s(
      "svg",
      { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("line", { class: "base", x1: 0, x2: 100, y1: 100, y2: 100 }),
      this.lines,
      this.cross,
    );
    this.top = h("span", { class: "y" });
    this.marks = h("div");
    this.start = h("span");
    this.keys = h("span", { class: "keys" });
    this.plot = h("div", { class: "plot" }, this.svg, this.top, this.marks);
    this.element = h(
      "section",
      { class: "chart" },
      h("header", {}, h("h2", { title: spec.hint ?? "" }, spec.title), this.value),
      this.plot,
      h("footer", {}, this.start, this.keys),
    );
    /** @type {number|null} */ this.pointer = null;
    this.span = { from_s: 0, to_s: 1 };
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.pointer = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      this.showHeader();
    });
    this.plot.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.showHeader();
    });
  }

  /** @param {{from_s: number, to_s: number}} span */
  update(span) {
    this.span = span;
    const curves = this.spec.curves();
    const limits = (this.spec.limits?.() ?? []).filter((limit) => Number.isFinite(limit.value));
    const top = ceiling(this.highest(curves, limits, span));
    this.lines.replaceChildren(
      ...limits.map((limit) => s("path", { class: "limit", d: `M0,${y(limit.value, top)}H100` })),
      ...curves.flatMap((curve) => this.paths(curve, top)),
    );
    setText(this.top, this.spec.format(top));
    const ends = curves
      .filter((curve) => curve.named && curve.series.last !== undefined)
      .map((curve) => ({ label: curve.label, value: curve.series.last }));
    this.marks.replaceChildren(
      ...[...limits, ...ends].map(({ label, value }) => {
        const mark = h("span", { class: "mark" }, label);
        mark.style.top = `${y(value, top)}%`;
        return mark;
      }),
    );
    setText(this.start, time(span.from_s));
    this.showHeader();
  }

  highest(curves, limits, { from_s }) {
    let most = this.spec.least ?? 0;
    for (const { series } of curves)
      for (let i = series.from(from_s); i < series.values.length; i += 1) most = Math.max(most, series.values[i]);
    // A limit far above all values would flatten every curve.
    for (const { value } of limits)
      if (value !== undefined && (most === 0 || value <= most * 3)) most = Math.max(most, value * 1.05);
    return most;
  }

  paths(curve, top) {
    const d = outline(curve.series, this.span, top);
    if (!d) return [];
    const line = s("path", { class: curve.dashed ? "curve dashed" : "curve", d });
    line.style.stroke = curve.colour;
    if (!curve.area) return [line];
    const fill = s("path", { class: "area", d: `${d}V100H${d.slice(1, d.indexOf(","))}Z` });
    fill.style.fill = curve.colour;
    return [fill, line];
  }

  /** The current value, or the time at the pointer. */
  showHeader() {
    const { spec, span, pointer } = this;
    const curves = spec.curves();
    if (pointer === null) {
      setText(this.value, spec.value());
      this.cross.setAttribute("visibility", "hidden");
      this.legend(curves, () => undefined);
      return;
    }
    const at_s = span.from_s + pointer * (span.to_s - span.from_s);
    this.cross.setAttribute("visibility", "visible");
    this.cross.setAttribute("x1", String(pointer * 100));
    this.cross.setAttribute("x2", String(pointer * 100));
    setText(this.value, time(at_s));
    this.legend(curves, (series) => series.values[series.near(at_s)]);
  }

  /** The values of the curves at the pointer, or the chart's note. */
  legend(curves, valueOf) {
    if (this.pointer === null) return setText(this.keys, this.spec.legend ?? "");
    const several = curves.length > 1;
    setText(
      this.keys,
      curves
        .slice(0, 5)
        .map((curve) => `${several ? `${curve.short ?? curve.label} ` : ""}${this.spec.format(valueOf(curve.series))}`)
        .join("  "),
    );
  }
}

const y = (value, top) => Math.round((100 - (100 * value) / top) * 100) / 100;

/** The next round number at or above the value. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value);
  return (factor ?? 10) * power;
}

/** The path of a series within a span, with at most about 300 points; "" if there is no point. */
function outline(series, { from_s, to_s }, top) {
  const first = Math.max(0, series.from(from_s) - 1);
  const points = series.values.length - first;
  if (points < 1 || to_s <= from_s) return "";
  const stride = Math.max(1, Math.floor(points / 300));
  const parts = [];
  for (let i = first; i < series.values.length; i += 1) {
    if ((i - first) % stride && i !== series.values.length - 1) continue;
    const x = Math.max(0, Math.round(((series.times[i] - from_s) / (to_s - from_s)) * 10000) / 100);
    parts.push(`${x},${y(series.values[i], top)}`);
  }
  return `M${parts.join("L")}`;
}

/** A small chart without text for a row of a table: all rows have one scale, and the mean is a dashed line. */
export class Sparkline {
  constructor() {
    this.area = s("path", { class: "area" });
    this.line = s("path", { class: "curve" });
    this.mean = s("path", { class: "curve dashed" });
    this.mean.style.stroke = "var(--edge)";
    this.mean.style.strokeWidth = "1";
    this.element = s(
      "svg",
      { class: "sparkline", viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area,
      this.mean,
      this.line,
    );
  }

  update(series, mean, span, top, colour) {
    const d = outline(series, span, top);
    this.line.setAttribute("d", d || "M0,100");
    this.area.setAttribute("d", d ? `${d}V100H${d.slice(1, d.indexOf(","))}Z` : "M0,100");
    this.mean.setAttribute("d", Number.isFinite(mean) ? `M0,${y(mean, top)}H100` : "M0,100");
    this.line.style.stroke = colour;
    this.area.style.fill = colour;
  }
}
