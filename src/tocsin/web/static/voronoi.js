// Areas of brokers: the part of a rectangle that is nearer to one point than to any other. Half-plane clipping takes n²
// steps for n brokers, which is fast enough for the dozens of brokers on a map.

/** @typedef {[number, number]} Point */

/**
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
