// The tree: a card for each node with its load bars and operators, lines to the parents, and operators on their way.
// A narrow page shows the tree as an indented list.

import { byId, h, s, setText } from "./dom.js";
import { count, rate, throughput } from "./format.js";
import { brokerVariable } from "./palette.js";
import { idsOf, isOver, livingParent, loadOf, partsOf, treeOf } from "./edge_state.js";

const NARROW_PX = 620;
const LEAST_CARD_PX = 90;
const MOST_CARD_PX = 196;
const CARD_PX = 122;
const GAP_PX = 10;
const INDENT_PX = 22;
const TRAVEL_MS = 1100;
const SHOWN = 36;
const LOADS = [
  ["mem", "memory_pct", "memory"],
  ["cpu", "cpu_pct", "processor"],
  ["up", "network_pct", "uplink"],
];

export class TreeView {
  constructor() {
    this.element = byId("tree");
    this.links = s("svg", { class: "links", "aria-hidden": "true" });
    this.list = h("ul", { "aria-label": "Nodes" });
    this.element.append(this.links, this.list);
    /** @type {Map<string, any>} */ this.cards = new Map();
    /** @type {Map<string, {x: number, y: number, width: number, height: number}>} */ this.boxes = new Map();
    /** @type {Map<string, number>} */ this.colours = new Map();
    this.shape = "";
    this.state = /** @type {any} */ (null);
    new ResizeObserver(() => {
      if (this.state) this.show(this.state);
    }).observe(this.element.parentElement);
  }

  show(state) {
    this.state = state;
    byId("tree-empty").hidden = state.nodes.size > 0;
    state.queries.forEach((query) => {
      if (!this.colours.has(query.name)) this.colours.set(query.name, this.colours.size);
    });
    this.arrange(state);
    for (const node of state.nodes.values()) this.fill(state, node);
    this.drawLinks(state);
    setText(byId("tree-note"), summary(state));
  }

  /** The operators that moved since the last answer travel along their line. */
  animate(state) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const { operator, source, target } of state.moves) {
      const from = this.boxes.get(source);
      const to = this.boxes.get(target);
      if (!from || !to) continue;
      const traveller = h("span", { class: "traveller", "aria-hidden": "true" });
      traveller.style.background = this.colourOf(operator);
      this.element.append(traveller);
      const at = ({ x, y, width, height }) => `translate(${x + width / 2}px, ${y + height / 2}px)`;
      const travel = traveller.animate([{ transform: at(from) }, { transform: at(to) }], {
        duration: TRAVEL_MS,
        easing: "ease-in-out",
        fill: "both",
      });
      travel.onfinish = () => traveller.remove();
    }
  }

  // -- layout --

  arrange(state) {
    const width = this.element.parentElement?.clientWidth ?? 0;
    const height = this.element.parentElement?.clientHeight ?? 0;
    const ordered = treeOf(state);
    const shape = [width, height, ...ordered.map(({ name, depth }) => `${depth}${name}`)].join("\n");
    if (shape === this.shape) return;
    this.shape = shape;
    this.boxes = width < NARROW_PX ? indented(ordered, width) : levels(ordered, width, height);
    const names = ordered.map(({ name }) => name);
    this.cards = new Map(names.map((name) => [name, this.cards.get(name) ?? makeCard(name)]));
    this.list.replaceChildren(...[...this.cards.values()].map(({ element }) => element));
    for (const [name, box] of this.boxes) {
      const { style } = this.cards.get(name).element;
      Object.assign(style, { left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` });
    }
    const all = [...this.boxes.values()];
    this.element.style.width = `${Math.max(width, ...all.map((box) => box.x + box.width + GAP_PX))}px`;
    this.element.style.height = `${Math.max(0, ...all.map((box) => box.y + box.height + GAP_PX))}px`;
  }

  drawLinks(state) {
    const paths = [];
    for (const node of state.nodes.values()) {
      const box = this.boxes.get(node.name);
      const own = this.boxes.get(node.parent ?? "");
      const parent = livingParent(state, node);
      const target = this.boxes.get(parent ?? "");
      if (node.state === "dead" || !box) {
        if (box && own) paths.push(s("path", { class: "link-up cut", d: line(box, own), "stroke-width": 2 }));
        continue;
      }
      if (!target) continue;
      const perS = state.bytesUpPerS.get(node.name) ?? 0;
      const width = Math.min(9, 1.5 + Math.log10(1 + perS / 500) * 2.2);
      const kind = parent === node.parent ? "link-up" : "link-up detour";
      const path = s("path", { class: kind, d: line(box, target), "stroke-width": width.toFixed(1) });
      path.append(s("title", {}, `${node.name} sends ${throughput(perS)} to ${parent}`));
      paths.push(path);
    }
    this.links.replaceChildren(...paths);
  }

  // -- cards --

  fill(state, node) {
    const card = this.cards.get(node.name);
    if (!card) return;
    const dead = node.state === "dead";
    card.element.className = `node${dead ? " dead" : ""}${isOver(state, node) ? " over" : ""}`;
    card.chip.hidden = node.state === "alive";
    card.chip.className = `chip ${dead ? "bad" : "warn"}`;
    setText(card.chip, node.state);
    setText(card.rate, dead ? "" : `${rate(node.rows_per_s)}/s`);
    card.rate.title = dead ? "" : `${count(node.inbox_bytes)} bytes wait in the inbox, ${count(node.late_rows)} readings were late`;
    for (const [, name] of LOADS) {
      const value = dead ? 0 : (node.usage?.[name] ?? 0);
      const bar = card.bars[name];
      bar.fill.style.width = `${Math.min(100, value)}%`;
      bar.fill.classList.toggle("over", value > state.upper_pct);
      bar.limit.style.left = `${Math.min(99, state.upper_pct)}%`;
      setText(bar.percent, dead ? "–" : `${Math.round(value)}%`);
      bar.track.setAttribute("aria-valuenow", String(Math.round(value)));
    }
    this.fillOperators(state, card, dead ? [] : idsOf(node).sort());
  }

  fillOperators(state, card, operators) {
    const key = operators.join("\n");
    if (card.operatorKey === key) return;
    card.operatorKey = key;
    const arrived = new Set(state.moves.map(({ operator }) => operator));
    const shown = operators.slice(0, SHOWN).map((operator) => {
      const { kind } = partsOf(operator);
      const classes = [kind === "final" || kind === "aggregate" ? "final" : "", arrived.has(operator) ? "arrived" : ""];
      const dot = h("li", { class: classes.join(" ").trim(), title: operator });
      dot.style.background = this.colourOf(operator);
      return dot;
    });
    if (operators.length > SHOWN) shown.push(h("li", { class: "more" }, `+${operators.length - SHOWN}`));
    card.operators.replaceChildren(...shown);
    card.operators.setAttribute("aria-label", `${operators.length} operators`);
  }

  colourOf(operator) {
    return brokerVariable(this.colours.get(partsOf(operator).query) ?? -1);
  }
}

function makeCard(name) {
  const chip = h("span", { class: "chip", hidden: true });
  const rateText = h("span", { class: "rate" });
  const operators = h("ul", { class: "operators" });
  const bars = {};
  const list = h("dl", { class: "bars" });
  for (const [short, key, long] of LOADS) {
    const fill = h("span", { class: "fill" });
    const limit = h("span", { class: "limit-mark" });
    const track = h("dd", { class: "track", role: "meter", "aria-label": `${long} of ${name}`, "aria-valuemin": "0", "aria-valuemax": "100" }, fill, limit);
    const percent = h("dd", { class: "percent" });
    list.append(h("dt", { title: long }, short), track, percent);
    bars[key] = { fill, limit, track, percent };
  }
  const element = h("li", { class: "node" }, h("header", {}, h("h3", { title: name }, name), chip, rateText), list, operators);
  return { element, chip, rate: rateText, bars, operators, operatorKey: "-" };
}

/** Each level in a row; a node is centred above its children. */
function levels(ordered, width, height) {
  const leaves = ordered.filter(({ children }) => children.length === 0).length;
  const depth = Math.max(0, ...ordered.map((entry) => entry.depth));
  const card = Math.min(MOST_CARD_PX, Math.max(LEAST_CARD_PX, (width - GAP_PX) / leaves - GAP_PX));
  const step = Math.max(card + GAP_PX, (width - GAP_PX) / leaves);
  const rowPx = Math.min(CARD_PX + 110, Math.max(CARD_PX + 36, (height - CARD_PX - 2 * GAP_PX) / Math.max(1, depth)));
  const boxes = new Map();
  const centres = new Map();
  let leaf = 0;
  for (const { name, children } of [...ordered].reverse()) {
    const own = children.map((child) => centres.get(child));
    // Leaves come in reverse order, so they fill the row from the right.
    const centre = own.length ? own.reduce((sum, x) => sum + x, 0) / own.length : (leaves - 0.5 - leaf++) * step + GAP_PX / 2;
    centres.set(name, centre);
  }
  for (const { name, depth: level } of ordered)
    boxes.set(name, { x: centres.get(name) - card / 2, y: GAP_PX + level * rowPx, width: card, height: CARD_PX });
  return boxes;
}

function indented(ordered, width) {
  const boxes = new Map();
  ordered.forEach(({ name, depth }, row) => {
    const x = GAP_PX + depth * INDENT_PX;
    boxes.set(name, { x, y: GAP_PX + row * (CARD_PX + GAP_PX), width: width - x - GAP_PX, height: CARD_PX, indented: true });
  });
  return boxes;
}

/** From a node's card up to its parent's. */
function line(box, parent) {
  if (box.indented) {
    const x = parent.x + INDENT_PX / 2;
    const y = box.y + box.height / 2;
    return `M ${box.x} ${y} H ${x} V ${parent.y + parent.height}`;
  }
  const from = { x: box.x + box.width / 2, y: box.y };
  const to = { x: parent.x + parent.width / 2, y: parent.y + parent.height };
  const bend = Math.max(18, (from.y - to.y) / 2);
  return `M ${from.x} ${from.y} C ${from.x} ${from.y - bend}, ${to.x} ${to.y + bend}, ${to.x} ${to.y}`;
}

function summary(state) {
  const nodes = [...state.nodes.values()];
  const over = nodes.filter((node) => isOver(state, node)).map(({ name }) => name);
  const dead = nodes.filter((node) => node.state === "dead").map(({ name }) => name);
  const heaviest = [...nodes].sort((a, b) => loadOf(b) - loadOf(a))[0];
  const parts = [
    dead.length && `dead: ${dead.join(", ")}`,
    over.length && `overloaded: ${over.join(", ")}`,
    !over.length && heaviest && `highest load ${Math.round(loadOf(heaviest))}% (${heaviest.name})`,
  ];
  return parts.filter(Boolean).join("; ");
}

export function showKeys(state, view) {
  const list = byId("tree-keys");
  const names = state.queries.map(({ name }) => name);
  const key = names.join("\n");
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const swatch = (name) => {
    const dot = h("span", { class: "swatch", "aria-hidden": "true" });
    dot.style.background = view.colourOf(`${name}/x`);
    return dot;
  };
  list.replaceChildren(
    ...names.map((name) => h("li", {}, swatch(name), name)),
    h("li", {}, h("span", { class: "swatch final", "aria-hidden": "true" }), "final aggregate"),
    h("li", {}, `mark in a bar: U_t = ${state.upper_pct}%`),
  );
}
