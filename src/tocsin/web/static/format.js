// Numbers and times in the format of the reader's locale.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const oneDecimal = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const twoDecimals = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const significant = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const NOTHING = "–";
/** Times above this are seconds since 1970; times below it are virtual seconds of a simulation, which start near 0. */
const WALL_S = 1e8;

const missing = (value) => value === null || value === undefined || !Number.isFinite(value);

export const count = (value) => (missing(value) ? NOTHING : whole.format(value));
export const ratio = (value) => (missing(value) ? NOTHING : twoDecimals.format(value));
export const number = (value) => (missing(value) ? NOTHING : significant.format(value));
export const rate = (value) => (missing(value) ? NOTHING : (value < 99.95 ? oneDecimal : whole).format(value));

export const percent = (value) => (missing(value) ? NOTHING : `${whole.format(value * 100)} %`);

/** Bytes per second as B/s, kB/s or MB/s. */
export function throughput(bytes_per_s) {
  if (missing(bytes_per_s)) return NOTHING;
  if (bytes_per_s >= 1e6) return `${significant.format(bytes_per_s / 1e6)} MB/s`;
  if (bytes_per_s >= 1e3) return `${significant.format(bytes_per_s / 1e3)} kB/s`;
  return `${whole.format(bytes_per_s)} B/s`;
}

/** A size as B, kB or MB. */
export const bytes = (size) => throughput(size).replace("/s", "");

/** A duration as ms, s, min or h. */
export function duration(seconds) {
  if (missing(seconds)) return NOTHING;
  if (seconds < 0.9995) return `${significant.format(seconds * 1000)} ms`;
  if (seconds < 120) return `${significant.format(seconds)} s`;
  if (seconds < 7200) return `${significant.format(seconds / 60)} min`;
  return `${significant.format(seconds / 3600)} h`;
}

export const isWall = (time_s) => time_s > WALL_S;

/** A row's time: wall time in the reader's zone, or hours, minutes and seconds since the start of the simulation. */
export function time(time_s) {
  if (missing(time_s)) return NOTHING;
  if (isWall(time_s)) return clock.format(new Date(time_s * 1000));
  const seconds = Math.max(0, Math.floor(time_s));
  const part = (value) => String(value).padStart(2, "0");
  return `${Math.floor(seconds / 3600)}:${part(Math.floor(seconds / 60) % 60)}:${part(seconds % 60)}`;
}

export const moment = (time_s) =>
  missing(time_s) ? NOTHING : isWall(time_s) ? date.format(new Date(time_s * 1000)) : time(time_s);

/** A value of a record as text. */
export function value(content) {
  if (content === null || content === undefined) return NOTHING;
  if (typeof content === "number")
    return Number.isInteger(content)
      ? whole.format(content)
      : new Intl.NumberFormat(undefined, { maximumFractionDigits: 5 }).format(content);
  if (typeof content === "boolean") return content ? "yes" : "no";
  if (typeof content === "string") return content;
  return JSON.stringify(content);
}

export const plural = (number_, singular, plural_) => `${count(number_)} ${number_ === 1 ? singular : plural_}`;
