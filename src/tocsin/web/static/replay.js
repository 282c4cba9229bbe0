// The timeline of a replay: play, pause, seek, speed. Only a replay server answers GET /v1/replay.

import { byId, h, setText } from "./dom.js";
import { number, time } from "./format.js";

const SPEEDS = [0.5, 1, 2, 5, 10, 30, 60, 300];

export class Replay {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.api = api;
    this.seeking = false;
    this.position = { from_s: 0, to_s: 1, at_s: 0, speed: 1, playing: true };
  }

  /** @returns {Promise<boolean>} whether the server replays a recording */
  async find() {
    try {
      this.position = await this.api.get("/v1/replay");
    } catch {
      return false;
    }
    this.build();
    return true;
  }

  /** Another page may have changed the replay. */
  async refresh() {
    this.position = await this.api.get("/v1/replay").catch(() => this.position);
    this.show(this.position.at_s);
  }

  build() {
    document.body.classList.add("replay");
    const bar = byId("timeline");
    const { from_s, to_s } = this.position;
    this.button = h("button", {
      type: "button",
      id: "play",
      onclick: () => this.change({ playing: !this.position.playing }),
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
    const speeds = [...new Set([...SPEEDS, this.position.speed])].sort((a, b) => a - b);
    this.speed = h(
      "select",
      { id: "speed", "aria-label": "Speed", onchange: () => this.change({ speed: Number(this.speed.value) }) },
      ...speeds.map((speed) => h("option", { value: speed }, `${number(speed)}×`)),
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
    this.show(this.position.at_s);
  }

  async change(request) {
    try {
      this.position = { ...this.position, ...request, ...(await this.api.put("/v1/replay", request)) };
    } catch (error) {
      setText(this.output, error.message);
      return;
    }
    this.show(this.position.at_s);
  }

  show(at_s) {
    setText(this.button, this.position.playing ? "Pause" : "Play");
    if (![...this.speed.options].some((option) => Number(option.value) === this.position.speed)) {
      this.speed.append(h("option", { value: this.position.speed }, `${number(this.position.speed)}×`));
    }
    this.speed.value = String(this.position.speed);
    if (this.seeking) return;
    this.range.value = String(at_s);
    this.range.setAttribute("aria-valuetext", time(at_s));
    setText(this.output, time(at_s));
    if (at_s >= this.position.to_s && this.position.playing) this.position.playing = false;
  }
}
