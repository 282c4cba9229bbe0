// One topic in the drawer: its home, its bound and what its home measures, and a form that moves it.

import { h, setText, showFacts } from "./dom.js";
import { count, duration, rate } from "./format.js";
import { servingBrokers } from "./state.js";
import { isLate } from "./topics.js";

export class TopicView {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./drawer.js").Drawer} drawer
   * @param {() => any} state
   * @param {() => boolean} isLive
   */
  constructor(api, drawer, state, isLive) {
    this.api = api;
    this.drawer = drawer;
    this.state = state;
    this.isLive = isLive;
  }

  open(name, closed) {
    this.name = name;
    this.facts = h("dl", { class: "facts" });
    this.message = h("p", { class: "said", role: "status" });
    const body = [this.facts, this.isLive() && this.moveForm()].filter(Boolean);
    this.drawer.open(`topic ${name}`, name, body, closed);
    this.show();
  }

  moveForm() {
    const refusal = this.api.isAdmin ? "" : "Moving needs a token with the scope admin. Your token can only read.";
    const home = this.state().topics.get(this.name)?.home;
    const others = servingBrokers(this.state()).filter((broker) => broker.id !== home);
    this.target = h("select", { id: "topic-target" }, ...others.map(({ id }) => h("option", { value: id }, id)));
    this.button = h("button", { type: "button", id: "topic-move", onclick: () => this.move() }, "Move");
    this.button.disabled = Boolean(refusal) || others.length === 0;
    return h(
      "div",
      {},
      h("h3", {}, "Move"),
      h("p", { class: "quiet" }, refusal || "Clients follow to the new home. They lose and repeat no message."),
      h("div", { class: "row" }, h("label", { htmlFor: "topic-target" }, "New home"), this.target, this.button),
      this.message,
    );
  }

  /** Show the newest rows about the topic; called with every frame. */
  show() {
    if (!this.drawer.shows(`topic ${this.name}`)) return;
    const topic = this.state().topics.get(this.name);
    if (!topic) return setText(this.message, "This topic was deleted.");
    showFacts(this.facts, [
      ["Home", topic.home ?? "none at the moment"],
      ["Moving to", topic.moving_to ?? "–"],
      ["Bound", topic.within_s ? duration(topic.within_s) : "none"],
      ["Worst latency", worst(topic)],
      ["Publishers", count(topic.senders)],
      ["Subscribers", count(topic.receivers)],
      ["Messages/s", rate(topic.messages_per_s)],
      ["Kept by", topic.persistent ? topic.replicas.join(", ") : "nobody: it is volatile"],
      ["Recorded into", topic.record_into ?? "nothing"],
      ["State", topic.status ?? topic.shortfall ?? "available"],
    ]);
  }

  async move() {
    this.button.disabled = true;
    try {
      const answer = await this.api.post("/v1/topics/move", { topic: this.name, target: this.target.value });
      setText(this.message, answer.moving ? `The topic moves to ${this.target.value}.` : "It is there already.");
    } catch (error) {
      setText(this.message, error.message);
    } finally {
      this.button.disabled = false;
    }
  }
}

function worst(topic) {
  if (topic.worst_s === undefined || topic.worst_s === null) return "not known";
  return duration(topic.worst_s) + (isLate(topic) ? ", above the bound" : "");
}
