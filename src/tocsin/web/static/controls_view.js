// Controls for administrators: placement, balancing and its thresholds, and one round of balancing with a preview.

import { field, h, quiet, replace, setText, table } from "./dom.js";
import { count, plural, ratio, throughput } from "./format.js";

/** The same names as in tocsin.policies; a test compares them. */
export const PLACEMENTS = ["nearest", "round-robin", "random", "least-loaded"];
export const SCHEMES = ["ldm", "sdm", "affinity", "none"];
export const SHUFFLES = ["gsh", "affinity", "none"];
const THRESHOLDS = /** @type {[string, string, number][]} */ ([
  ["alpha", "α: move above this cov", 0.01],
  ["beta_bytes_per_s", "β: and above this mean load, bytes/s", 100],
  ["gamma", "γ: shuffle above this cov", 0.01],
  ["theta_bytes_per_s", "θ: and above this mean load, bytes/s", 100],
]);
const ONCE = "multistage-once";
const SHOWN = 60;

export class ControlsView {
  /** @param {import("./api.js").Api} api @param {import("./drawer.js").Drawer} drawer */
  constructor(api, drawer) {
    this.api = api;
    this.drawer = drawer;
  }

  async open() {
    this.message = h("p", { class: "said", role: "status" });
    this.plan = h("div");
    const waiting = quiet("Loading");
    this.drawer.open("controls", "Controls", [waiting]);
    try {
      const [balance, settings] = await Promise.all([this.api.get("/v1/balance"), this.api.get("/v1/settings")]);
      if (this.drawer.shows("controls")) replace(this.drawer.body, ...this.form(balance, settings));
    } catch (error) {
      replace(waiting, error.message);
    }
  }

  form(balance, settings) {
    const fields = {
      placement: select("placement", PLACEMENTS, settings.placement),
      replacement: select("replacement", PLACEMENTS, settings.replacement),
      scheme: select("scheme", SCHEMES, balance.scheme),
      shuffle: select("shuffle", SHUFFLES, balance.shuffle),
      on: h("input", { type: "checkbox", name: "on", id: "balance-on", checked: balance.on }),
      ...Object.fromEntries(
        THRESHOLDS.map(([name, , step]) => [
          name,
          h("input", {
            type: "number",
            name,
            id: `balance-${name}`,
            min: 0,
            step,
            required: true,
            value: balance[name],
          }),
        ]),
      ),
    };
    const isReadOnly = !this.api.isAdmin;
    const form = h(
      "form",
      {
        class: "form",
        id: "controls-form",
        onsubmit: (event) => {
          event.preventDefault();
          this.save(fields);
        },
      },
      h("label", { class: "full check" }, fields.on, "Balance automatically"),
      field("Migration", fields.scheme),
      field("Shuffle", fields.shuffle),
      ...THRESHOLDS.map(([name, label]) => field(label, fields[name])),
      field("Placement of new subscribers", fields.placement),
      field("Placement after a broker failed or was drained", fields.replacement),
      h("div", { class: "full row" }, h("button", { type: "submit", class: "primary" }, "Save")),
    );
    const once = h("button", { type: "button", id: "plan-once", onclick: () => this.dryRun() }, "Show the plan");
    for (const control of [...form.elements, once]) control.disabled = isReadOnly;
    return [
      isReadOnly && h("p", { class: "note" }, "Changes need a token with the scope admin. Your token can only read."),
      h("h3", {}, "Balancing and placement"),
      form,
      this.message,
      h("h3", {}, "Balance once"),
      quiet("Shows the planned moves and their reasons. Subscribers move only after you confirm."),
      h("div", { class: "row" }, once),
      this.plan,
    ].filter(Boolean);
  }

  async save(fields) {
    const thresholds = Object.fromEntries(THRESHOLDS.map(([name]) => [name, Number(fields[name].value)]));
    try {
      await this.api.put("/v1/balance", {
        on: fields.on.checked,
        scheme: fields.scheme.value,
        shuffle: fields.shuffle.value,
        ...thresholds,
      });
      await this.api.put("/v1/settings", { placement: fields.placement.value, replacement: fields.replacement.value });
      setText(this.message, "Saved. The settings apply from the next round.");
    } catch (error) {
      setText(this.message, error.message);
    }
  }

  async dryRun() {
    replace(this.plan, h("p", { class: "quiet", role: "status" }, "Planning"));
    try {
      this.showPlan(await this.api.post("/v1/plans?dry_run=true", { policy: ONCE }), false);
    } catch (error) {
      replace(this.plan, h("p", { class: "bad", role: "status" }, error.message));
    }
  }

  /** Request the moves that were shown. The coordinator checks each move again; its answer lists those it started. */
  async carryOut(plan) {
    const moves = plan.moves.filter((move) => move.taken).map(({ subscriber, target }) => ({ subscriber, target }));
    try {
      this.showPlan(await this.api.post("/v1/plans?dry_run=false", { moves }), true);
    } catch (error) {
      this.plan.prepend(h("p", { class: "bad", role: "status" }, `${error.message} Show the plan again.`));
    }
  }

  showPlan(plan, done) {
    const taken = plan.moves.filter((move) => move.taken);
    const summary = done
      ? `${plural(taken.length, "move", "moves")} started.`
      : taken.length
        ? `${plural(taken.length, "move", "moves")}, cov ${ratio(plan.before.cov)} → ${ratio(plan.after.cov)}.`
        : "Nothing to do.";
    replace(
      this.plan,
      h("p", { class: "said", role: "status" }, summary),
      plan.note && quiet(plan.note),
      plan.moves.length > 0 && moveTable(plan.moves),
      plan.moves.length > SHOWN && quiet(`and ${count(plan.moves.length - SHOWN)} more`),
      !done &&
        taken.length > 0 &&
        h(
          "div",
          { class: "row" },
          h(
            "button",
            { type: "button", id: "plan-do", class: "primary", onclick: () => this.carryOut(plan) },
            `Start ${plural(taken.length, "move", "moves")}`,
          ),
        ),
    );
  }
}

function moveTable(moves) {
  return table(
    [
      ["Subscriber", "hold"],
      ["From → to", "hold"],
      ["Load", "num"],
      ["Reason", "hold"],
    ],
    moves
      .slice(0, SHOWN)
      .map((move) => [
        move.subscriber,
        `${move.source} → ${move.target}`,
        throughput(move.load_bytes_per_s),
        move.taken ? move.reason : h("td", { class: "hold warn" }, `refused: ${move.reason}`),
      ]),
  );
}

function select(name, options, chosen) {
  return h(
    "select",
    { name, id: `balance-${name}` },
    ...options.map((option) =>
      h("option", { value: option, selected: option === chosen }, option.length <= 3 ? option.toUpperCase() : option),
    ),
  );
}
