// One notification as a card: a headline and the other columns of the result.

import { h } from "./dom.js";
import { time, value } from "./format.js";

export function headline(result) {
  const text =
    result.message ??
    result.headline ??
    result.title ??
    result.kind ??
    Object.values(result).find((content) => typeof content === "string");
  return text === undefined ? "a result" : value(text);
}

/** @param {{channel: string, result: Record<string, any>}} message @param {number} now_s */
export function card(message, now_s) {
  const rest = Object.entries(message.result).filter(([name]) => name !== "message");
  return h(
    "li",
    { class: "card" },
    h("div", { class: "top" }, h("b", {}, headline(message.result)), h("time", { class: "quiet" }, time(now_s))),
    h("p", { class: "quiet" }, message.channel),
    h("p", { class: "quiet hold" }, rest.map(([name, content]) => `${name} ${value(content)}`).join(" · ")),
  );
}

/** `name value, name value` */
export function parameterText(parameters) {
  return Object.entries(parameters ?? {})
    .map(([name, content]) => `${name} ${value(content)}`)
    .join(", ");
}
