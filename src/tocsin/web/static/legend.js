// The map's legend: symbols for people, shelters and the kinds of emergencies seen so far.

import { byId, h, s } from "./dom.js";
import { HOUSE, outlineOf, shapeOf } from "./symbols.js";

const MAX_KINDS = 8;

export class Legend {
  constructor() {
    this.list = byId("legend");
    /** @type {Set<string>} */ this.kinds = new Set();
    this.drawn = "";
  }

  show(state) {
    for (const event of state.events) if (this.kinds.size < MAX_KINDS) this.kinds.add(event.note ?? "event");
    const kinds = [...this.kinds];
    const parts = [state.people.placed > 0, state.places.size > 0, ...kinds];
    if (parts.join() === this.drawn) return;
    this.drawn = parts.join();
    this.list.replaceChildren(
      ...[
        state.people.placed > 0 && h("li", {}, dot(), "person"),
        state.places.size > 0 && h("li", {}, icon(HOUSE, "var(--shelter)"), "shelter"),
        ...kinds.map((kind) => h("li", {}, icon(outlineOf(shapeOf(kind)), "var(--alarm)"), kind)),
      ].filter(Boolean),
    );
    this.list.hidden = this.list.childElementCount === 0;
  }
}

function icon(path, colour) {
  const shape = s("path", { d: path });
  shape.style.fill = colour;
  return s("svg", { viewBox: "-12 -12 24 24", "aria-hidden": "true" }, shape);
}

function dot() {
  const circle = s("circle", { r: 5 });
  circle.style.fill = "var(--b0)";
  return s("svg", { viewBox: "-12 -12 24 24", "aria-hidden": "true" }, circle);
}
