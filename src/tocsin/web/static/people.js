// People: the position and the broker of each, in flat arrays, because the map reads up to twenty thousand of them
// sixty times a second.

const GLIDE_MS = 1000;

export class People {
  constructor() {
    /** @type {Map<string, number>} */
    this.slots = new Map();
    this.free = /** @type {number[]} */ ([]);
    this.size = 0; // slots in use or free: arrays are read up to here
    this.placed = 0; // number of people with a position
    this.grow(1024);
  }

  grow(capacity) {
    const longer = (Type, old) => {
      const array = new Type(capacity);
      if (old) array.set(old);
      return array;
    };
    this.lat = longer(Float64Array, this.lat);
    this.lon = longer(Float64Array, this.lon);
    this.fromLat = longer(Float64Array, this.fromLat);
    this.fromLon = longer(Float64Array, this.fromLon);
    this.movedMs = longer(Float64Array, this.movedMs);
    this.broker = longer(Int16Array, this.broker);
    this.shown = longer(Uint8Array, this.shown);
  }

  /** The slot of a person; a new slot for an unknown person. */
  slot(name) {
    const existing = this.slots.get(name);
    if (existing !== undefined) return existing;
    const slot = this.free.pop() ?? this.size++;
    if (slot >= this.lat.length) this.grow(this.lat.length * 2);
    this.slots.set(name, slot);
    this.broker[slot] = -1;
    this.shown[slot] = 0;
    return slot;
  }

  /** @param {string} name @param {number} index the broker's, or -1 for none */
  serve(name, index) {
    this.broker[this.slot(name)] = index;
  }

  /** Set a person's position; the map shows the change as a glide of one second. */
  place(name, lat, lon, nowMs) {
    const slot = this.slot(name);
    if (this.shown[slot]) {
      const part = this.glided(slot, nowMs);
      this.fromLat[slot] += (this.lat[slot] - this.fromLat[slot]) * part;
      this.fromLon[slot] += (this.lon[slot] - this.fromLon[slot]) * part;
    } else {
      this.fromLat[slot] = lat;
      this.fromLon[slot] = lon;
      this.shown[slot] = 1;
      this.placed += 1;
    }
    this.lat[slot] = lat;
    this.lon[slot] = lon;
    this.movedMs[slot] = nowMs;
  }

  /** Completed part of the glide, 0 to 1. */
  glided(slot, nowMs) {
    const part = (nowMs - this.movedMs[slot]) / GLIDE_MS;
    return part >= 1 ? 1 : part > 0 ? part : 0;
  }

  leave(name) {
    const slot = this.slots.get(name);
    if (slot === undefined) return;
    if (this.shown[slot]) this.placed -= 1;
    this.shown[slot] = 0;
    this.broker[slot] = -1;
    this.slots.delete(name);
    this.free.push(slot);
  }

  /** @returns {number} the slot of the nearest person within `within` (in the units of `distance`), or -1 */
  nearest(distance, within) {
    let best = -1;
    for (let slot = 0; slot < this.size; slot += 1) {
      if (!this.shown[slot]) continue;
      const away = distance(this.lat[slot], this.lon[slot]);
      if (away < within) {
        within = away;
        best = slot;
      }
    }
    return best;
  }

  nameOf(slot) {
    for (const [name, at] of this.slots) if (at === slot) return name;
    return "";
  }
}
