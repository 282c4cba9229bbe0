// The view of a subscriber: choose a channel and its parameters, and receive notifications over a broker's WebSocket.
// The session stays open when the drawer closes: closing does not unsubscribe.

import { field, h, quiet, replace, setText } from "./dom.js";
import { plural } from "./format.js";
import { card, headline, parameterText } from "./notification.js";
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
    this.list = h("ol", { id: "notifications" });
    this.held = h("div", { id: "held" });
    this.status = h("p", { class: "quiet", role: "status", id: "session-status" });
    this.message = h("p", { class: "said", role: "status" });
    this.live = h("p", { class: "unseen", "aria-live": "polite" });
  }

  async open(channel = "") {
    const waiting = quiet("Loading the channels");
    this.drawer.open("subscriber", "Subscribe", [waiting]);
    if (!this.api.maySubscribe)
      return replace(
        waiting,
        "Subscribing needs a token with the scope subscribe, register or admin. Your token can only read.",
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
    const user =
      this.api.isAdmin || this.api.scopes.includes("register")
        ? this.user || `page-${Math.random().toString(36).slice(2, 8)}`
        : this.api.subject;
    this.name = h("input", {
      name: "user",
      id: "user",
      value: user,
      required: true,
      pattern: "[A-Za-z0-9._\\-]{1,100}",
      autocomplete: "off",
      spellcheck: false,
      readOnly: Boolean(this.session) || user === this.api.subject,
    });
    this.choice = h(
      "select",
      { name: "channel", id: "channel" },
      ...this.channels.map(({ name }) => h("option", { value: name, selected: name === channel }, name)),
    );
    this.parameters = h("div", { class: "form full", id: "parameters" });
    this.choice.addEventListener("change", () => this.showParameters());
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
    this.showParameters();
    return [
      form,
      this.message,
      h("h3", {}, "Session"),
      this.status,
      this.held,
      h("h3", {}, "Notifications"),
      this.list,
      this.live,
    ];
  }

  showParameters() {
    const channel = this.channels.find(({ name }) => name === this.choice.value);
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
    const channel = this.channels.find(({ name }) => name === this.choice.value);
    const parameters = valuesOf(this.parameters, channel.parameters);
    setText(this.message, "Subscribing");
    try {
      await this.connect(parameters);
      const held = await this.session?.subscribe(channel.name, parameters);
      setText(this.message, `Subscribed to ${held.channel}.`);
    } catch (error) {
      setText(this.message, error.message);
    }
  }

  /** Register, request a broker and wait for the session. */
  async connect(parameters) {
    if (this.session && !this.session.ended) return this.connecting();
    this.user = this.name.value;
    this.name.readOnly = true;
    const position =
      Number.isFinite(parameters.lat) && Number.isFinite(parameters.lon)
        ? { lat: parameters.lat, lon: parameters.lon }
        : {};
    /** @type {string} */ let token = "";
    const locate = async (avoid) => {
      token ||= (await this.api.post("/v1/users", { user: this.user, ...position })).token;
      return this.api.post(
        `/v1/users/${encodeURIComponent(this.user)}/broker`,
        avoid ? { avoid: [avoid], ...position } : position,
        token,
      );
    };
    this.session = new Session(locate, {
      result: (message) => this.addResult(message),
      gap: (message) => this.addGap(message),
      changed: () => this.show(),
    });
    this.session.find();
    return this.connecting();
  }

  connecting() {
    const { session } = this;
    return new Promise((resolve, reject) => {
      const started = performance.now();
      const check = () => {
        if (session?.broker) resolve(undefined);
        else if (session?.ended || performance.now() - started > 20_000)
          reject(new Error(session?.error || "no broker answered"));
        else setTimeout(check, 50);
      };
      check();
    });
  }

  // -- notifications --

  addResult(message) {
    this.notifications.unshift(message);
    this.notifications.length = Math.min(this.notifications.length, KEPT);
    const { lat, lon } = message.result;
    if (Number.isFinite(lat) && Number.isFinite(lon)) this.map.pins = [{ lat, lon }, ...this.map.pins].slice(0, 20);
    this.map.requestFrame();
    this.list.prepend(card(message, Date.now() / 1000));
    while (this.list.childElementCount > KEPT) this.list.lastElementChild?.remove();
    setText(this.live, `${message.channel}: ${headline(message.result)}`);
    this.show();
  }

  addGap(message) {
    this.list.prepend(
      h("li", { class: "note" }, `Results of ${message.channel} are missing here: their retention period is over.`),
    );
  }

  show() {
    const { session } = this;
    if (!session) return setText(this.status, "Not connected. The first subscription connects to a broker.");
    const received = plural(this.notifications.length, "notification", "notifications");
    const via = session.brokerHistory.length > 1 ? `, after ${session.brokerHistory.slice(0, -1).join(", ")}` : "";
    setText(
      this.status,
      session.broker
        ? `${this.user} on ${session.broker}${via}; ${received}`
        : session.ended
          ? `Ended: ${session.error}`
          : `Connecting${session.error ? ` (${session.error})` : ""}`,
    );
    replace(
      this.held,
      ...session.subscriptions.all().map((progress) =>
        h(
          "div",
          { class: "card top" },
          h("span", { class: "hold" }, `${progress.channel} ${parameterText(progress.parameters)}`),
          h(
            "button",
            {
              type: "button",
              id: `leave-${progress.subscription}`,
              onclick: () =>
                session.unsubscribe(progress.subscription).catch((error) => setText(this.message, error.message)),
            },
            "Unsubscribe",
          ),
        ),
      ),
    );
  }

  /** End the session when the page signs out. */
  end() {
    this.session?.stop();
    this.session = null;
    this.notifications = [];
    this.list.replaceChildren();
    this.map.pins = [];
  }
}
