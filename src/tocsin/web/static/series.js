// The last points of a measurement, in order of time.

const LENGTH = 900;

export class Series {
  constructor() {
    /** @type {number[]} */ this.times = [];
    /** @type {number[]} */ this.values = [];
  }

  /** A second value for the same time replaces the first; an older time is ignored. */
  add(time_s, value) {
    if (!Number.isFinite(value)) return;
    const last = this.times.length - 1;
    if (last >= 0 && time_s <= this.times[last]) {
      if (time_s === this.times[last]) this.values[last] = value;
      return;
    }
    this.times.push(time_s);
    this.values.push(value);
    if (this.times.length > LENGTH) {
      this.times.splice(0, LENGTH / 4);
      this.values.splice(0, LENGTH / 4);
    }
  }

  get last() {
    return this.values.length ? this.values[this.values.length - 1] : undefined;
  }

  /** Mean of the seconds between two points, over all kept points. */
  get step_s() {
    const n = this.times.length;
    return n > 1 ? (this.times[n - 1] - this.times[0]) / (n - 1) : 0;
  }

  /** Mean of the seconds between the last ten points; 0 with fewer than two points. */
  get pace_s() {
    const n = this.times.length;
    const first = Math.max(0, n - 10);
    return n - first > 1 ? (this.times[n - 1] - this.times[first]) / (n - 1 - first) : 0;
  }

  /** The index of the point nearest to a time; -1 if there is none. */
  near(time_s) {
    let best = -1;
    let least = Infinity;
    for (let i = this.times.length - 1; i >= 0; i -= 1) {
      const away = Math.abs(this.times[i] - time_s);
      if (away > least) break;
      least = away;
      best = i;
    }
    return best;
  }

  /** The first index at or after a time. */
  from(time_s) {
    const index = this.times.findIndex((time) => time >= time_s);
    return index < 0 ? this.times.length : index;
  }
}
