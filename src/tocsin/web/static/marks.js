// The map's upper layer: brokers with names and loads, emergencies, moves, and this page's own notifications.

import { faded } from "./palette.js";
import { pathOf, shapeOf } from "./symbols.js";
import { listedBrokers } from "./state.js";
import { throughput } from "./format.js";

export const EVENT_MS = 25_000;
const APPEAR_MS = 1_200;
/** Map area per symbol; more symbols would hide the city. */
const SYMBOL_PX2 = 17_000;
const ARC_MS = 1_600;
const FONT = '600 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';
const SMALL = FONT.replace("600 12px", "500 11px");

/** @param {CanvasRenderingContext2D} context @returns {boolean} whether an animation is in progress */
export function drawMarks(context, state, view, palette, ratio, nowMs, still, more) {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  const moving = [
    drawArcs(context, state, view, palette, nowMs, still),
    drawEvents(context, state, view, palette, nowMs, still),
  ].some(Boolean);
  if (more.topic) drawTopic(context, more.topic, state, view, palette);
  drawPins(context, more.pins, view, palette);
  drawBrokers(context, state, view, palette, more.chosen);
  if (more.picking) drawCrosshair(context, view, palette);
  return moving;
}

export function radiusOf(severity) {
  return 4.5 + 1.3 * Math.min(5, Math.max(1, Number(severity) || 2));
}

/**
 * Emergencies, newest on top. Of several close together, only the newest has a symbol and the others are dots, so that
 * fifty emergencies a second stay readable.
 */
function drawEvents(context, state, view, palette, nowMs, still) {
  const symbols = [];
  const most = Math.max(8, (view.width * view.height) / SYMBOL_PX2);
  let isAnimated = false;
  for (let i = state.events.length - 1; i >= 0; i -= 1) {
    const event = state.events[i];
    // On a busy machine a frame is drawn with the time at which it was due, which may be before the event arrived.
    const age = Math.max(0, nowMs - event.bornMs);
    if (age > EVENT_MS) continue;
    isAnimated = true;
    const mark = { event, age, x: view.sx(event.lon), y: view.sy(event.lat), size: radiusOf(event.detail?.severity) };
    const hidden = (other) => Math.hypot(mark.x - other.x, mark.y - other.y) < (mark.size + other.size) * 0.9;
    if (symbols.length >= most || symbols.some(hidden)) drawDot(context, mark, palette);
    else symbols.push(mark);
  }
  for (const mark of symbols.reverse()) {
    if (!still && mark.age < APPEAR_MS) {
      const grown = mark.age / APPEAR_MS;
      ring(context, mark.x, mark.y, mark.size + 14 * grown, faded(palette.alarm, 0.8 * (1 - grown)));
    }
    symbol(context, mark, palette, still);
  }
  return isAnimated;
}

/** An emergency without a symbol. */
function drawDot(context, { x, y, age }, palette) {
  context.fillStyle = faded(palette.alarm, 0.55 * (1 - age / EVENT_MS));
  context.fillRect(x - 1.5, y - 1.5, 3, 3);
}

function symbol(context, { event, age, x, y, size }, palette, still) {
  const path = pathOf(shapeOf(event.note ?? ""));
  context.save();
  context.globalAlpha = still ? 0.9 : Math.min(1, 1.25 * (1 - age / EVENT_MS) + 0.1);
  context.translate(x, y);
  context.scale(size / 10, size / 10);
  context.lineJoin = "round";
  context.lineWidth = 40 / size;
  context.strokeStyle = palette.surface;
  context.stroke(path);
  context.fillStyle = palette.alarm;
  context.fill(path);
  context.restore();
}

function ring(context, x, y, radius, colour) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.stroke();
}

/** Each move is a curve between two brokers, with a dot that moves along it. */
function drawArcs(context, state, view, palette, nowMs, still) {
  let isAnimated = false;
  for (const arc of state.arcs) {
    const age = Math.max(0, nowMs - arc.bornMs) / ARC_MS;
    const from = state.brokers.get(arc.source);
    const to = state.brokers.get(arc.target);
    if (age > 1 || !Number.isFinite(from?.lat) || !Number.isFinite(to?.lat)) continue;
    isAnimated = true;
    const [x0, y0, x1, y1] = [view.sx(from.lon), view.sy(from.lat), view.sx(to.lon), view.sy(to.lat)];
    const cx = (x0 + x1) / 2 - (y1 - y0) * 0.18;
    const cy = (y0 + y1) / 2 + (x1 - x0) * 0.18;
    const colour = palette.brokers[to.index % palette.brokers.length];
    context.beginPath();
    context.moveTo(x0, y0);
    context.quadraticCurveTo(cx, cy, x1, y1);
    context.strokeStyle = faded(colour, still ? 0.7 : 0.75 * (1 - age));
    context.lineWidth = 1.75;
    context.stroke();
    if (still) continue;
    const at = (a, b, c) => (1 - age) * (1 - age) * a + 2 * (1 - age) * age * b + age * age * c;
    context.beginPath();
    context.arc(at(x0, cx, x1), at(y0, cy, y1), 3.5, 0, 2 * Math.PI);
    context.fillStyle = colour;
    context.fill();
  }
  return isAnimated;
}

/** Lines from a topic's home to its clients: solid to publishers, dashed to subscribers. */
function drawTopic(context, topic, state, view, palette) {
  const home = state.brokers.get(topic.home);
  if (!Number.isFinite(home?.lat)) return;
  const { people } = state;
  for (const [names, dash] of [
    [topic.publishers ?? [], []],
    [topic.subscribers ?? [], [4, 4]],
  ]) {
    context.setLineDash(dash);
    for (const name of names) {
      const slot = people.slots.get(name);
      if (slot === undefined || !people.shown[slot]) continue;
      const [x, y] = [view.sx(people.lon[slot]), view.sy(people.lat[slot])];
      context.beginPath();
      context.moveTo(view.sx(home.lon), view.sy(home.lat));
      context.lineTo(x, y);
      context.strokeStyle = faded(palette.accent, 0.7);
      context.lineWidth = 1.5;
      context.stroke();
      context.setLineDash([]);
      ring(context, x, y, 6, palette.accent);
      context.setLineDash(dash);
    }
  }
  context.setLineDash([]);
}

function drawBrokers(context, state, view, palette, chosen) {
  const brokers = listedBrokers(state).filter((broker) => Number.isFinite(broker.lat) && Number.isFinite(broker.lon));
  const most = Math.max(1, ...brokers.map((broker) => broker.load ?? 0));
  for (const broker of brokers) {
    const x = view.sx(broker.lon);
    const y = view.sy(broker.lat);
    const colour = palette.brokers[broker.index % palette.brokers.length];
    const dead = broker.state === "dead";
    context.beginPath();
    context.arc(x, y, 11, 0, 2 * Math.PI);
    context.fillStyle = palette.surface;
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = palette.edge;
    context.stroke();
    if (!dead) {
      context.beginPath();
      context.arc(x, y, 8.5, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * Math.min(1, (broker.load ?? 0) / most));
      context.strokeStyle = colour;
      context.lineWidth = 3.5;
      context.stroke();
    }
    context.beginPath();
    context.arc(x, y, 4, 0, 2 * Math.PI);
    context.fillStyle = dead ? palette.alarm : colour;
    context.fill();
    if (broker.id === chosen) ring(context, x, y, 15, palette.accent);
    const text = broker.state === "alive" || !broker.state ? throughput(broker.load) : broker.state;
    label(context, x, y + 23, broker.id, text, palette, broker.state === "alive" ? palette.muted : palette.warn);
  }
}

function label(context, x, y, name, text, palette, colour) {
  context.textAlign = "center";
  context.lineJoin = "round";
  context.lineWidth = 3.5;
  context.strokeStyle = palette.map;
  for (const [font, line, fill, dy] of [
    [FONT, name, palette.ink, 0],
    [SMALL, text, colour, 13],
  ]) {
    context.font = font;
    context.strokeText(line, x, y + dy);
    context.fillStyle = fill;
    context.fillText(line, x, y + dy);
  }
}

/** Positions of the notifications that this page's subscriber received. */
function drawPins(context, pins, view, palette) {
  for (const pin of pins) ring(context, view.sx(pin.lon), view.sy(pin.lat), 13, palette.accent);
}

function drawCrosshair(context, view, palette) {
  const [x, y] = [view.width / 2, view.height / 2];
  context.beginPath();
  for (const [dx, dy] of [
    [1, 0],
    [-1, 0],
    [0, 1],
    [0, -1],
  ]) {
    context.moveTo(x + dx * 4, y + dy * 4);
    context.lineTo(x + dx * 14, y + dy * 14);
  }
  context.strokeStyle = palette.accent;
  context.lineWidth = 2;
  context.stroke();
}
