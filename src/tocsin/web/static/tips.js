// What lies under the pointer on the map, in words.

import { count, throughput, time, value } from "./format.js";
import { EVENT_MS, radiusOf } from "./marks.js";
import { listed } from "./state.js";

const BROKER_PX = 16;
const PLACE_PX = 9;
const PERSON_PX = 5;

export function brokerAt(state, view, x, y) {
  return listed(state).find((broker) => Math.hypot(view.sx(broker.lon) - x, view.sy(broker.lat) - y) < BROKER_PX);
}

/** The topmost thing there; null if there is none. @returns {{text: string, broker?: any}|null} */
export function wordsAt(state, view, x, y, nowMs) {
  const away = (lat, lon) => Math.hypot(view.sx(lon) - x, view.sy(lat) - y);
  const broker = brokerAt(state, view, x, y);
  if (broker) return { broker, text: `${broker.id}\n${throughput(broker.load)}, ${count(broker.subscribers)} people` };
  const hit = (one) => nowMs - one.bornMs < EVENT_MS && away(one.lat, one.lon) < radiusOf(one.detail?.severity) + 3;
  const event = state.events.findLast(hit);
  if (event) {
    const { message, severity } = event.detail ?? {};
    return { text: lines(event.note, message, severity && `severity ${value(severity)}`, time(event.time_s)) };
  }
  const place = [...state.places.values()].find((one) => away(one.lat, one.lon) < PLACE_PX);
  if (place) return { text: lines(place.note, place.detail?.capacity && `room for ${value(place.detail.capacity)}`) };
  const slot = state.people.nearest(away, PERSON_PX);
  if (slot < 0) return null;
  const serves = [...state.brokers.values()].find((one) => one.index === state.people.broker[slot]);
  return { text: lines(state.people.nameOf(slot), serves ? `served by ${serves.id}` : "no broker") };
}

const lines = (...parts) => parts.filter(Boolean).join("\n");
