// The city map: three canvases on top of each other, and their mouse, touch and keyboard input. Draws only on changes.

import { Crowd } from "./crowd.js";
import { drawGround } from "./ground.js";
import { count, throughput, time, value } from "./format.js";
import { EVENT_MS, drawMarks, radiusOf } from "./marks.js";
import { readPalette } from "./palette.js";
import { listedBrokers } from "./state.js";
import { View, boundsOf } from "./view.js";
import { byId, setText } from "./dom.js";

const reduced = matchMedia("(prefers-reduced-motion: reduce)");
const KEY_STEP = 60;
/** Distances within which the pointer touches an object. */
const BROKER_PX = 16;
const PLACE_PX = 9;
const PERSON_PX = 5;

export class CityMap {
  /** @param {{chooseBroker: (id: string) => void}} actions */
  constructor(actions) {
    this.actions = actions;
    this.root = byId("map");
    this.canvas = byId("map-canvas");
    const layers = [...this.root.querySelectorAll("canvas")];
    this.layers = layers;
    this.groundContext = layers[0].getContext("2d");
    this.crowdContext = layers[1].getContext("2d", { willReadFrequently: true }); // `crowd` writes single pixels
    this.marksContext = layers[2].getContext("2d");
    this.crowd = new Crowd(this.crowdContext);
    this.view = new View();
    this.palette = readPalette();
    this.state = /** @type {any} */ (null);
    this.chosen = "";
    this.chosenTopic = "";
    /** @type {{lat: number, lon: number}[]} */ this.pins = [];
    /** @type {((place: {lat: number, lon: number}|null) => void)|null} */ this.picked = null;
    this.fittedTo = "";
    this.drawn = -1; // the ground's change counter at the last drawing
    this.ratio = 1;
    this.frames = 0;
    this.requested = false;
    new ResizeObserver(() => this.resize()).observe(this.root);
    this.listen();
    this.resize();
  }

  resize() {
    this.ratio = Math.min(2, devicePixelRatio || 1);
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    for (const layer of this.layers) {
      layer.width = Math.round(width * this.ratio);
      layer.height = Math.round(height * this.ratio);
    }
    Object.assign(this.view, { width, height });
    this.drawn = -1;
    if (!this.view.moved) this.fit();
    this.requestFrame();
  }

  recolour() {
    this.palette = readPalette();
    this.drawn = -1;
    this.requestFrame();
  }

  show(state) {
    this.state = state;
    // Without streets the people give the extent: fit the view again whenever their number has doubled.
    const doublings = state.streets.length ? 0 : Math.ceil(Math.log2(state.people.placed + 1));
    const extent = `${state.changes.ground} ${doublings}`;
    if (this.fittedTo !== extent && !this.view.moved) {
      this.fittedTo = extent;
      this.fit();
    }
    this.requestFrame();
  }

  fit() {
    const bounds = this.state && boundsOf(this.state);
    if (!bounds) return;
    this.view.fit(bounds);
    this.drawn = -1;
    this.requestFrame();
  }

  /** Request an animation frame, unless one is requested already. */
  requestFrame() {
    if (this.requested) return;
    this.requested = true;
    requestAnimationFrame((nowMs) => {
      this.requested = false;
      this.draw(nowMs);
    });
  }

  draw(nowMs) {
    const { state, view, palette, ratio } = this;
    if (!state) return;
    this.frames += 1;
    if (this.drawn !== state.changes.ground) {
      drawGround(this.groundContext, state, view, palette, ratio);
      this.drawn = state.changes.ground;
    }
    const gliding = this.crowd.draw(state.people, view, palette, ratio, nowMs, reduced.matches);
    const topic = state.topics.get(this.chosenTopic);
    const more = { pins: this.pins, chosen: topic?.home ?? this.chosen, topic, picking: this.picked !== null };
    const moving = drawMarks(this.marksContext, state, view, palette, ratio, nowMs, reduced.matches, more);
    if ((gliding || moving) && !reduced.matches) this.requestFrame();
  }

  moved() {
    this.drawn = -1;
    this.requestFrame();
  }

  // -- input --

  listen() {
    const { canvas, view } = this;
    /** @type {Map<number, {x: number, y: number}>} */
    const pointers = new Map();
    let travelled = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
      if (pointers.size === 1) travelled = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return this.hover(event.offsetX, event.offsetY);
      const now = { x: event.offsetX, y: event.offsetY };
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      if (other)
        view.zoom(
          Math.hypot(now.x - other.x, now.y - other.y) /
            Math.max(1, Math.hypot(before.x - other.x, before.y - other.y)),
          other.x,
          other.y,
        );
      else if (travelled > 4 || Math.hypot(now.x - before.x, now.y - before.y) > 2)
        view.pan(now.x - before.x, now.y - before.y);
      travelled += Math.hypot(now.x - before.x, now.y - before.y);
      pointers.set(event.pointerId, now);
      this.moved();
    });
    const lift = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && travelled <= 4)
        this.click(event.offsetX, event.offsetY);
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => {
      byId("map-tip").hidden = true;
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        view.zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY);
        this.moved();
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.root.querySelector(".map-tools").addEventListener("click", (event) => {
      const zoom = event.target.dataset.zoom;
      if (zoom === "fit") this.fit();
      else if (zoom) view.zoom(zoom === "in" ? 1.5 : 1 / 1.5);
      this.moved();
    });
    byId("pick-cancel").addEventListener("click", () => this.endPick(null));
  }

  key(event) {
    const steps = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (steps) this.view.pan(steps[0] * KEY_STEP, steps[1] * KEY_STEP);
    else if (event.key === "+" || event.key === "=") this.view.zoom(1.4);
    else if (event.key === "-") this.view.zoom(1 / 1.4);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter" && this.picked) this.click(this.view.width / 2, this.view.height / 2);
    else if (event.key === "Escape" && this.picked) this.endPick(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.moved();
  }

  click(x, y) {
    if (this.picked) return this.endPick({ lat: this.view.lat(y), lon: this.view.lon(x) });
    const broker = this.state && brokerAt(this.state, this.view, x, y);
    if (broker) this.actions.chooseBroker(broker.id);
  }

  /** Let the user choose a place; resolves with null if the user cancels. */
  pick() {
    this.endPick(null);
    this.root.classList.add("picking");
    byId("pick-hint").hidden = false;
    this.canvas.focus();
    return new Promise((resolve) => {
      this.picked = resolve;
      this.requestFrame();
    });
  }

  endPick(place) {
    const { picked } = this;
    this.picked = null;
    this.root.classList.remove("picking");
    byId("pick-hint").hidden = true;
    this.requestFrame();
    picked?.(place);
  }

  // -- tooltip --

  hover(x, y) {
    const tip = byId("map-tip");
    const tooltip = this.state && tooltipAt(this.state, this.view, x, y, performance.now());
    this.canvas.style.cursor = tooltip?.broker ? "pointer" : "";
    tip.hidden = !tooltip;
    if (!tooltip) return;
    setText(tip, tooltip.text);
    tip.style.left = `${Math.min(x + 14, this.view.width - 180)}px`;
    tip.style.top = `${Math.min(y + 14, this.view.height - 60)}px`;
  }
}

function brokerAt(state, view, x, y) {
  const away = ({ lat, lon }) => Math.hypot(view.sx(lon) - x, view.sy(lat) - y);
  return listedBrokers(state).find((broker) => away(broker) < BROKER_PX);
}

/** The text for the topmost object at a point; null if there is none. @returns {{text: string, broker?: any}|null} */
function tooltipAt(state, view, x, y, nowMs) {
  const away = (lat, lon) => Math.hypot(view.sx(lon) - x, view.sy(lat) - y);
  const broker = brokerAt(state, view, x, y);
  if (broker) return { broker, text: `${broker.id}\n${throughput(broker.load)}, ${count(broker.subscribers)} people` };
  const hit = ({ bornMs, lat, lon, detail }) =>
    nowMs - bornMs < EVENT_MS && away(lat, lon) < radiusOf(detail?.severity) + 3;
  const event = state.events.findLast(hit);
  if (event) {
    const { message, severity } = event.detail ?? {};
    return { text: lines(event.note, message, severity && `severity ${value(severity)}`, time(event.time_s)) };
  }
  const place = [...state.places.values()].find(({ lat, lon }) => away(lat, lon) < PLACE_PX);
  if (place) return { text: lines(place.note, place.detail?.capacity && `room for ${value(place.detail.capacity)}`) };
  const slot = state.people.nearest(away, PERSON_PX);
  if (slot < 0) return null;
  const home = [...state.brokers.values()].find(({ index }) => index === state.people.broker[slot]);
  return { text: lines(state.people.nameOf(slot), home ? `served by ${home.id}` : "no broker") };
}

const lines = (...parts) => parts.filter(Boolean).join("\n");
