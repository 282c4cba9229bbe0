// A subscriber's own view: pick a channel, give its parameters, watch notifications arrive over a broker's WebSocket.
// The session outlives the drawer: closing it does not unsubscribe.

import { field, h, replace, setText } from "./dom.js";
import { plural } from "./format.js";
import { card, headline, words } from "./notification.js";
import { fieldsFor, valuesOf } from "./parameters.js";
import { Session } from "./session.js";

const KEPT = 100;

export class SubscriberView {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./drawer.js").Drawer} drawer
   * @param {import("./map.js").CityMap} map
   */
  constructor(api, drawer, map) {
    this.api = api;
    this.drawer = drawer;
    this.map = map;
    /** @type {Session|null} */ this.session = null;
    this.user = "";
    /** @type {any[]} */ this.notifications = [];
    this.heard = h("ol", { id: "notifications" });
    this.held = h("div", { id: "held" });
    this.status = h("p", { class: "quiet", role: "status", id: "session-status" });
    this.said = h("p", { class: "said", role: "status" });
    this.tell = h("p", { class: "unseen", "aria-live": "polite" });
  }

  async open(channel = "") {
    const waiting = h("p", { class: "quiet" }, "Asking for the channels");
    this.drawer.open("subscriber", "Subscribe", [waiting]);
    if (!this.api.maySubscribe)
      return replace(
        waiting,
        "Subscribing needs a token with the scope subscribe, register or admin; yours may only look.",
      );
    try {
      this.channels = (await this.api.get("/v1/cluster/channels")).channels;
    } catch (error) {
      return replace(waiting, error.message);
    }
    if (!this.drawer.shows("subscriber")) return;
    if (!this.channels.length) return replace(waiting, "There are no channels yet: tocsin apply FILE declares some.");
    replace(this.drawer.body, ...this.form(channel));
    this.show();
  }

  form(channel) {
    const known =
      this.api.isAdmin || this.api.scopes.includes("register")
        ? this.user || `page-${Math.random().toString(36).slice(2, 8)}`
        : this.api.subject;
    this.name = h("input", {
      name: "user",
      id: "user",
      value: known,
      required: true,
      pattern: "[A-Za-z0-9._\\-]{1,100}",
      autocomplete: "off",
      spellcheck: false,
      readOnly: Boolean(this.session) || known === this.api.subject,
    });
    this.choice = h(
      "select",
      { name: "channel", id: "channel" },
      ...this.channels.map((one) => h("option", { value: one.name, selected: one.name === channel }, one.name)),
    );
    this.parameters = h("div", { class: "form full", id: "parameters" });
    this.choice.addEventListener("change", () => this.chosen());
    const form = h(
      "form",
      {
        class: "form",
        id: "subscribe-form",
        onsubmit: (event) => {
          event.preventDefault();
          this.submit();
        },
      },
      field("Subscriber", this.name),
      field("Channel", this.choice),
      this.parameters,
      h("div", { class: "full row" }, h("button", { type: "submit", class: "primary", id: "subscribe" }, "Subscribe")),
    );
    this.chosen();
    return [
      form,
      this.said,
      h("h3", {}, "Session"),
      this.status,
      this.held,
      h("h3", {}, "Notifications"),
      this.heard,
      this.tell,
    ];
  }

  chosen() {
    const channel = this.channels.find((one) => one.name === this.choice.value);
    replace(
      this.parameters,
      ...fieldsFor(channel.parameters, { user: () => this.name.value, pick: () => this.pick() }),
    );
  }

  async pick() {
    this.drawer.aside(true);
    try {
      return await this.map.pick();
    } finally {
      this.drawer.aside(false);
    }
  }

  async submit() {
    const channel = this.channels.find((one) => one.name === this.choice.value);
    const parameters = valuesOf(this.parameters, channel.parameters);
    setText(this.said, "Subscribing");
    try {
      await this.connected(parameters);
      const held = await this.session?.subscribe(channel.name, parameters);
      setText(this.said, `Subscribed to ${held.channel}.`);
    } catch (error) {
      setText(this.said, error.message);
    }
  }

  /** Registers, asks for a broker and waits for the session. */
  async connected(parameters) {
    if (this.session && !this.session.ended) return this.live();
    this.user = this.name.value;
    this.name.readOnly = true;
    const where =
      Number.isFinite(parameters.lat) && Number.isFinite(parameters.lon)
        ? { lat: parameters.lat, lon: parameters.lon }
        : {};
    /** @type {string} */ let token = "";
    const locate = async (avoid) => {
      token ||= (await this.api.post("/v1/users", { user: this.user, ...where })).token;
      return this.api.post(
        `/v1/users/${encodeURIComponent(this.user)}/broker`,
        avoid ? { avoid: [avoid], ...where } : where,
        token,
      );
    };
    this.session = new Session(locate, {
      result: (message) => this.arrived(message),
      gap: (message) => this.missed(message),
      changed: () => this.show(),
    });
    this.session.find();
    return this.live();
  }

  live() {
    const { session } = this;
    return new Promise((resolve, reject) => {
      const started = performance.now();
      const look = () => {
        if (session?.broker) resolve(undefined);
        else if (session?.ended || performance.now() - started > 20_000)
          reject(new Error(session?.trouble || "no broker answered"));
        else setTimeout(look, 50);
      };
      look();
    });
  }

  // -- what arrives --

  arrived(message) {
    this.notifications.unshift(message);
    this.notifications.length = Math.min(this.notifications.length, KEPT);
    const { lat, lon } = message.result;
    if (Number.isFinite(lat) && Number.isFinite(lon)) this.map.pins = [{ lat, lon }, ...this.map.pins].slice(0, 20);
    this.map.ask();
    this.heard.prepend(card(message, Date.now() / 1000));
    while (this.heard.childElementCount > KEPT) this.heard.lastElementChild?.remove();
    setText(this.tell, `${message.channel}: ${headline(message.result)}`);
    this.show();
  }

  missed(message) {
    this.heard.prepend(
      h("li", { class: "note" }, `Results of ${message.channel} are missing here: they were older than what is kept.`),
    );
  }

  show() {
    const { session } = this;
    if (!session) return setText(this.status, "Not connected. The first subscription connects to a broker.");
    const told = plural(this.notifications.length, "notification", "notifications");
    const via = session.brokersSeen.length > 1 ? `, after ${session.brokersSeen.slice(0, -1).join(", ")}` : "";
    setText(
      this.status,
      session.broker
        ? `${this.user} on ${session.broker}${via}; ${told}`
        : session.ended
          ? `Ended: ${session.trouble}`
          : `Connecting${session.trouble ? ` (${session.trouble})` : ""}`,
    );
    const standings = [...session.standings.all()];
    replace(
      this.held,
      ...standings.map((one) =>
        h(
          "div",
          { class: "card top" },
          h("span", { class: "hold" }, `${one.channel} ${words(one.parameters)}`),
          h(
            "button",
            {
              type: "button",
              id: `leave-${one.subscription}`,
              onclick: () => session.unsubscribe(one.subscription).catch((error) => setText(this.said, error.message)),
            },
            "Unsubscribe",
          ),
        ),
      ),
    );
  }

  /** The page is signed out. */
  end() {
    this.session?.stop();
    this.session = null;
    this.notifications = [];
    this.heard.replaceChildren();
    this.map.pins = [];
  }
}
