// The map's middle layer: people, as pixels written straight into one image. Ten thousand of them take about a
// millisecond, whatever the browser's canvas is made of; there is no drawing call and no element per person.

/** Dots grow with the zoom, and shrink where a crowd would hide the streets. */
function radiusOf(view, people, ratio) {
  const base = people.placed > 6000 ? 1.1 : people.placed > 1500 ? 1.4 : 1.9;
  return Math.max(1, base * Math.min(2.2, Math.sqrt(Math.sqrt(view.scale / view.fitted))) * ratio);
}

/** Offsets of a disc's pixels, as [dx, dy] pairs. */
function disc(radius) {
  const offsets = [];
  const reach = Math.floor(radius);
  for (let dy = -reach; dy <= reach; dy += 1) for (let dx = -reach; dx <= reach; dx += 1) if (dx * dx + dy * dy <= radius * radius + 0.3) offsets.push([dx, dy]);
  return offsets;
}

export class Crowd {
  /** @param {CanvasRenderingContext2D} context */
  constructor(context) {
    this.context = context;
    /** @type {ImageData|null} */ this.image = null;
    this.pixels = new Uint32Array(0);
  }

  /** @returns {boolean} whether anybody is still on the way to a new place */
  draw(people, view, palette, ratio, nowMs, still) {
    const { width, height } = this.context.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    } else this.pixels.fill(0);
    const gliding = this.fill(people, view, palette.words, ratio, nowMs, still);
    this.context.putImageData(this.image, 0, 0);
    return gliding;
  }

  fill(people, view, words, ratio, nowMs, still) {
    const { pixels } = this;
    const { width, height } = this.context.canvas;
    const radius = radiusOf(view, people, ratio);
    const reach = Math.ceil(radius);
    const steps = disc(radius).map(([dx, dy]) => dy * width + dx);
    const { lat, lon, fromLat, fromLon, shown, broker, size } = people;
    const colours = words.length - 1; // the last is nobody's
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
      const colour = broker[slot] < 0 ? words[colours] : words[broker[slot] % colours];
      const at = y * width + x;
      for (let step = 0; step < steps.length; step += 1) pixels[at + steps[step]] = colour;
    }
    return gliding;
  }
}
