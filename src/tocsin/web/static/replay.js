// The timeline of a recording: play, pause, seek, speed. Only a replay server answers GET /v1/replay.

import { byId, h, setText } from "./dom.js";
import { number, time } from "./format.js";

const SPEEDS = [0.5, 1, 2, 5, 10, 30, 60, 300];

export class Replay {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.seeking = false;
    this.told = { from_s: 0, to_s: 1, at_s: 0, speed: 1, playing: true };
  }

  /** @returns {Promise<boolean>} whether this is a recording */
  async find() {
    try {
      this.told = await this.api.get("/v1/replay");
    } catch {
      return false;
    }
    this.build();
    return true;
  }

  /** Somebody else may have changed it. */
  async refresh() {
    this.told = await this.api.get("/v1/replay").catch(() => this.told);
    this.show(this.told.at_s);
  }

  build() {
    document.body.classList.add("replay");
    const bar = byId("timeline");
    const { from_s, to_s } = this.told;
    this.button = h("button", {
      type: "button",
      id: "play",
      onclick: () => this.change({ playing: !this.told.playing }),
    });
    this.range = h("input", {
      type: "range",
      id: "seek",
      min: from_s,
      max: to_s,
      step: "any",
      "aria-label": "Time in the recording",
    });
    this.output = h("output", { for: "seek" });
    const speeds = [...new Set([...SPEEDS, this.told.speed])].sort((a, b) => a - b);
    this.speed = h(
      "select",
      { id: "speed", "aria-label": "Speed", onchange: () => this.change({ speed: Number(this.speed.value) }) },
      ...speeds.map((one) => h("option", { value: one }, `${number(one)}×`)),
    );
    this.range.addEventListener("input", () => {
      this.seeking = true;
      setText(this.output, time(Number(this.range.value)));
    });
    this.range.addEventListener("change", () =>
      this.change({ at_s: Number(this.range.value) }).finally(() => {
        this.seeking = false;
      }),
    );
    bar.replaceChildren(
      this.button,
      this.range,
      this.output,
      h("span", { class: "quiet" }, `of ${time(to_s)}`),
      this.speed,
    );
    bar.hidden = false;
    this.show(this.told.at_s);
  }

  async change(wish) {
    try {
      this.told = { ...this.told, ...wish, ...(await this.api.put("/v1/replay", wish)) };
    } catch (error) {
      setText(this.output, error.message);
      return;
    }
    this.show(this.told.at_s);
  }

  show(at_s) {
    setText(this.button, this.told.playing ? "Pause" : "Play");
    if (![...this.speed.options].some((one) => Number(one.value) === this.told.speed)) {
      this.speed.append(h("option", { value: this.told.speed }, `${number(this.told.speed)}×`));
    }
    this.speed.value = String(this.told.speed);
    if (this.seeking) return;
    this.range.value = String(at_s);
    this.range.setAttribute("aria-valuetext", time(at_s));
    setText(this.output, time(at_s));
    if (at_s >= this.told.to_s && this.told.playing) this.told.playing = false;
  }
}
