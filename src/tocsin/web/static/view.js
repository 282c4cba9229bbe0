// The visible part of the map: converts degrees to pixels and back. The projection is equirectangular around the middle
// of the city, which is exact enough for the size of a city.

const LEAST_DEGREES = 0.002;
const LABEL_PIXELS = 36; // the names and loads of brokers stand below them

export class View {
  constructor() {
    this.width = 1;
    this.height = 1;
    this.shrink = 1; // a degree of longitude, in degrees of latitude
    this.x = 0; // the centre: longitude × shrink, and minus the latitude
    this.y = 0;
    this.scale = 1; // pixels per degree of latitude
    this.fitted = 1;
    this.moved = false; // the user has moved it: do not fit it again
  }

  sx(lon) {
    return (lon * this.shrink - this.x) * this.scale + this.width / 2;
  }
  sy(lat) {
    return (-lat - this.y) * this.scale + this.height / 2;
  }
  lon(sx) {
    return ((sx - this.width / 2) / this.scale + this.x) / this.shrink;
  }
  lat(sy) {
    return -((sy - this.height / 2) / this.scale + this.y);
  }

  /** @param {{south: number, north: number, west: number, east: number}} bounds */
  fit(bounds) {
    this.shrink = Math.max(0.05, Math.cos((((bounds.south + bounds.north) / 2) * Math.PI) / 180));
    const wide = Math.max(LEAST_DEGREES, (bounds.east - bounds.west) * this.shrink);
    const high = Math.max(LEAST_DEGREES, bounds.north - bounds.south);
    const room = Math.max(this.height / 2, this.height - LABEL_PIXELS);
    this.scale = this.fitted = 0.92 * Math.min(this.width / wide, room / high);
    this.x = ((bounds.west + bounds.east) / 2) * this.shrink;
    this.y = -(bounds.south + bounds.north) / 2 + (this.height - room) / 2 / this.scale;
    this.moved = false;
  }

  pan(dx, dy) {
    this.x -= dx / this.scale;
    this.y -= dy / this.scale;
    this.moved = true;
  }

  /** Zoom around a point that keeps its position. */
  zoom(factor, sx = this.width / 2, sy = this.height / 2) {
    const scale = Math.min(this.fitted * 60, Math.max(this.fitted * 0.5, this.scale * factor));
    const x = (sx - this.width / 2) / this.scale + this.x;
    const y = (sy - this.height / 2) / this.scale + this.y;
    this.x = x - (sx - this.width / 2) / scale;
    this.y = y - (sy - this.height / 2) / scale;
    this.scale = scale;
    this.moved = true;
  }
}

/** The bounds of streets and brokers, and without streets of places and people too; null if there are none. */
export function boundsOf(state) {
  const bounds = { south: Infinity, north: -Infinity, west: Infinity, east: -Infinity };
  const add = (lat, lon) => {
    if (!Number.isFinite(lat) || !Number.isFinite(lon)) return;
    if (lat < bounds.south) bounds.south = lat;
    if (lat > bounds.north) bounds.north = lat;
    if (lon < bounds.west) bounds.west = lon;
    if (lon > bounds.east) bounds.east = lon;
  };
  for (const line of state.streets) for (const [lat, lon] of line) add(lat, lon);
  for (const broker of state.brokers.values()) if (broker.state !== "gone") add(broker.lat, broker.lon);
  if (!state.streets.length) {
    for (const place of state.places.values()) add(place.lat, place.lon);
    const { people } = state;
    for (let slot = 0; slot < people.size; slot += 1) if (people.shown[slot]) add(people.lat[slot], people.lon[slot]);
  }
  return bounds.south <= bounds.north ? bounds : null;
}
