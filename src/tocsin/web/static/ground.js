// The map's lowest layer: areas of brokers, streets, shelters. Drawn again when they, the view or the theme change.

import { faded } from "./palette.js";
import { housePath } from "./symbols.js";
import { servingBrokers } from "./state.js";

/** @param {CanvasRenderingContext2D} context */
export function drawGround(context, state, view, palette, ratio) {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = palette.map;
  context.fillRect(0, 0, view.width, view.height);
  drawAreas(context, state, view, palette);
  drawStreets(context, state, view, palette);
  drawShelters(context, state, view, palette);
  drawScale(context, view, palette);
}

const METRES_PER_DEGREE = 111_195;

/** A scale bar for a round number of metres. */
function drawScale(context, view, palette) {
  const perPixel_m = METRES_PER_DEGREE / view.scale;
  const length_m =
    [5e4, 2e4, 1e4, 5000, 2000, 1000, 500, 200, 100, 50, 20, 10].find((length) => length / perPixel_m <= 110) ?? 10;
  const [x, y] = [14 + length_m / perPixel_m, 24];
  context.strokeStyle = palette.muted;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, y - 5);
  context.lineTo(x, y);
  context.lineTo(x - length_m / perPixel_m, y);
  context.lineTo(x - length_m / perPixel_m, y - 5);
  context.stroke();
  context.font = "500 11px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillStyle = palette.muted;
  context.fillText(length_m >= 1000 ? `${length_m / 1000} km` : `${length_m} m`, x - 4, y - 5);
}

/** The area in which each broker is the nearest one that accepts subscribers. */
function drawAreas(context, state, view, palette) {
  const brokers = servingBrokers(state).filter(
    (broker) => broker.accepting && Number.isFinite(broker.lat) && Number.isFinite(broker.lon),
  );
  const sites = brokers.map((broker) => /** @type {[number, number]} */ ([view.sx(broker.lon), view.sy(broker.lat)]));
  const areas = cells(sites, [-2, -2, view.width + 2, view.height + 2]);
  areas.forEach((area, index) => {
    if (area.length < 3) return;
    context.beginPath();
    area.forEach(([x, y], corner) => (corner ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = faded(palette.brokers[brokers[index].index % palette.brokers.length], 0.1);
    context.fill();
    if (brokers.length > 1) {
      context.strokeStyle = faded(palette.edge, 0.55);
      context.lineWidth = 1;
      context.setLineDash([5, 4]);
      context.stroke();
      context.setLineDash([]);
    }
  });
}

function drawStreets(context, state, view, palette) {
  context.strokeStyle = palette.street;
  context.lineWidth = Math.min(4, Math.max(0.8, 1.1 * Math.sqrt(view.scale / view.fitted)));
  context.lineJoin = "round";
  context.beginPath();
  for (const line of state.streets) {
    line.forEach(([lat, lon], index) =>
      index ? context.lineTo(view.sx(lon), view.sy(lat)) : context.moveTo(view.sx(lon), view.sy(lat)),
    );
  }
  context.stroke();
}

function drawShelters(context, state, view, palette) {
  const path = housePath();
  const size = state.places.size > 60 ? 0.46 : 0.62; // many symbols must be small to keep the people visible
  for (const place of state.places.values()) {
    const x = view.sx(place.lon);
    const y = view.sy(place.lat);
    if (x < -20 || y < -20 || x > view.width + 20 || y > view.height + 20) continue;
    context.save();
    context.translate(x, y);
    context.scale(size, size);
    context.lineWidth = 3;
    context.strokeStyle = palette.map;
    context.stroke(path);
    context.fillStyle = palette.shelter;
    context.fill(path);
    context.restore();
  }
}

/** @typedef {[number, number]} Point */

/**
 * Areas of brokers: the part of a rectangle that is nearer to one point than to any other. Half-plane clipping takes n²
 * steps for n brokers, which is fast enough for the dozens of brokers on a map.
 * @param {Point[]} sites
 * @param {[number, number, number, number]} box x0 y0 x1 y1
 * @returns {Point[][]} one cell per site
 */
export function cells(sites, [x0, y0, x1, y1]) {
  return sites.map((site, index) => {
    let cell = /** @type {Point[]} */ ([
      [x0, y0],
      [x1, y0],
      [x1, y1],
      [x0, y1],
    ]);
    for (let other = 0; other < sites.length && cell.length; other += 1) {
      const [ox, oy] = sites[other];
      if (other === index) continue;
      if (ox === site[0] && oy === site[1]) {
        if (other < index) cell = []; // two brokers at the same place: the first gets the area
        continue;
      }
      cell = nearer(cell, site, sites[other]);
    }
    return cell;
  });
}

/** The part of a convex polygon that is nearer to `site` than to `other`. */
function nearer(polygon, [sx, sy], [ox, oy]) {
  const dx = ox - sx;
  const dy = oy - sy;
  const middle = ((sx + ox) * dx + (sy + oy) * dy) / 2;
  const beyond = ([x, y]) => x * dx + y * dy - middle; // > 0: nearer to the other
  const kept = /** @type {Point[]} */ ([]);
  polygon.forEach((point, index) => {
    const next = polygon[(index + 1) % polygon.length];
    const a = beyond(point);
    const b = beyond(next);
    if (a <= 0) kept.push(point);
    if ((a < 0 && b > 0) || (a > 0 && b < 0)) {
      const part = a / (a - b);
      kept.push([point[0] + (next[0] - point[0]) * part, point[1] + (next[1] - point[1]) * part]);
    }
  });
  return kept;
}
