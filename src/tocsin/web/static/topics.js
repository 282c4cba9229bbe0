// The list of topics: homes, bounds, and whether their brokers keep the bounds. The panel is hidden without topics.

import { byId, h, replace, setText } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { brokerVariable } from "./palette.js";

const SHOWN = 200;

export class TopicList {
  /** @param {(name: string) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.body = byId("topic-table").tBodies[0];
    this.drawn = -1;
  }

  show(state) {
    if (this.drawn === state.changes.topics) return;
    this.drawn = state.changes.topics;
    byId("topics-panel").hidden = state.topics.size === 0;
    document.body.classList.toggle("has-topics", state.topics.size > 0);
    const topics = [...state.topics].sort(byNeed);
    replace(this.body, ...topics.slice(0, SHOWN).map(([name, topic], index) => this.row(state, name, topic, index)));
    setText(byId("topics-note"), summary(topics));
  }

  row(state, name, topic, index) {
    const home = topic.home === null ? undefined : state.brokers.get(topic.home);
    const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
    if (home) swatch.style.background = brokerVariable(home.index);
    return h(
      "tr",
      { class: "pick", onclick: () => this.choose(name) },
      h(
        "td",
        { class: "cut", title: name },
        h("button", { type: "button", class: "link", id: `topic-${index}` }, name),
        problemOf(topic) && h("span", { class: "bad" }, ` ${problemOf(topic)}`),
      ),
      h("td", {}, h("span", { class: "name" }, home && swatch, topic.home ?? "none", arrow(topic))),
      h("td", { class: "num" }, duration(topic.within_s ?? undefined)),
      h("td", { class: isLate(topic) ? "num bad" : "num" }, duration(topic.worst_s ?? undefined)),
      h("td", { class: "num optional" }, count(topic.senders)),
      h("td", { class: "num optional" }, count(topic.receivers)),
      h("td", { class: "num" }, rate(topic.messages_per_s)),
    );
  }
}

const arrow = (topic) => (topic.moving_to ? ` → ${topic.moving_to}` : "");

/** True if the worst estimated latency exceeds the topic's bound. */
export const isLate = ({ within_s, worst_s }) =>
  Number.isFinite(within_s) && Number.isFinite(worst_s) && within_s !== null && worst_s > within_s;

/** What is wrong with a topic; "" if nothing is. */
export function problemOf(topic) {
  if (topic.status) return topic.status.startsWith("not available") ? "not available" : "replica missing";
  if (topic.home === null) return "no home";
  return isLate(topic) ? "late" : "";
}

/** Topics with a problem come first. */
const byNeed = ([a, one], [b, other]) =>
  Number(problemOf(other) !== "") - Number(problemOf(one) !== "") || a.localeCompare(b, "en", { numeric: true });

function summary(topics) {
  const wrong = topics.filter(([, topic]) => problemOf(topic)).length;
  const shown = topics.length > SHOWN ? `${SHOWN} of ${plural(topics.length, "topic", "topics")}` : "";
  return [shown || plural(topics.length, "topic", "topics"), wrong > 0 && `${count(wrong)} with a problem`]
    .filter(Boolean)
    .join(", ");
}
