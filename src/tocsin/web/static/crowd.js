// The map's middle layer: people as pixels, written into one image. Ten thousand people take about a millisecond,
// because there is no drawing call and no element per person.

/** Mask that halves a pixel's alpha. */
const SOFT = 0x7fffffff;

/** Dots grow with the zoom, and are smaller when there are so many people that they would hide the streets. */
function radiusOf(view, people, ratio) {
  const base = people.placed > 6000 ? 1.2 : people.placed > 2500 ? 1.5 : 2;
  return Math.max(1, base * Math.min(2.2, Math.sqrt(Math.sqrt(view.scale / view.fitted))) * ratio);
}

/** A disc's pixels as offsets into the image: those inside, and those on its edge, which are half transparent. */
function disc(radius, width) {
  const inside = [];
  const edge = [];
  const reach = Math.ceil(radius);
  for (let dy = -reach; dy <= reach; dy += 1) {
    for (let dx = -reach; dx <= reach; dx += 1) {
      const away = Math.hypot(dx, dy);
      if (away <= radius - 0.35) inside.push(dy * width + dx);
      else if (away <= radius + 0.35) edge.push(dy * width + dx);
    }
  }
  return { inside, edge };
}

export class Crowd {
  /** @param {CanvasRenderingContext2D} context */
  constructor(context) {
    this.context = context;
    /** @type {ImageData|null} */ this.image = null;
    this.pixels = new Uint32Array(0);
  }

  /** @returns {boolean} whether a person still glides to a new place */
  draw(people, view, palette, ratio, nowMs, still) {
    const { width, height } = this.context.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    } else this.pixels.fill(0);
    const gliding = this.fill(people, view, palette.pixelColours, ratio, nowMs, still);
    this.context.putImageData(this.image, 0, 0);
    return gliding;
  }

  fill(people, view, pixelColours, ratio, nowMs, still) {
    const { pixels } = this;
    const { width, height } = this.context.canvas;
    const radius = radiusOf(view, people, ratio);
    const reach = Math.ceil(radius + 0.35);
    const { inside, edge } = disc(radius, width);
    const { lat, lon, fromLat, fromLon, shown, broker, size } = people;
    const noBroker = pixelColours.length - 1; // the last colour is for people without a broker
    const scale = view.scale * ratio;
    const left = (view.width / 2) * ratio - view.x * scale;
    const top = (view.height / 2) * ratio - view.y * scale;
    let gliding = false;
    for (let slot = 0; slot < size; slot += 1) {
      if (!shown[slot]) continue;
      const part = still ? 1 : people.glided(slot, nowMs);
      gliding ||= part < 1;
      const east = fromLon[slot] + (lon[slot] - fromLon[slot]) * part;
      const north = fromLat[slot] + (lat[slot] - fromLat[slot]) * part;
      const x = Math.round(east * view.shrink * scale + left);
      const y = Math.round(-north * scale + top);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) continue;
      const colour = pixelColours[broker[slot] < 0 ? noBroker : broker[slot] % noBroker];
      const at = y * width + x;
      for (let step = 0; step < inside.length; step += 1) pixels[at + inside[step]] = colour;
      const soft = (colour & SOFT) >>> 0;
      for (let step = 0; step < edge.length; step += 1) if (!pixels[at + edge[step]]) pixels[at + edge[step]] = soft;
    }
    return gliding;
  }
}
