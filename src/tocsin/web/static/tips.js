// The text of the tooltip at the pointer on the map.

import { count, throughput, time, value } from "./format.js";
import { EVENT_MS, radiusOf } from "./marks.js";
import { listed } from "./state.js";

const BROKER_PX = 16;
const PLACE_PX = 9;
const PERSON_PX = 5;

export function brokerAt(state, view, x, y) {
  return listed(state).find((broker) => Math.hypot(view.sx(broker.lon) - x, view.sy(broker.lat) - y) < BROKER_PX);
}

/** The text for the topmost object at a point; null if there is none. @returns {{text: string, broker?: any}|null} */
export function tooltipAt(state, view, x, y, nowMs) {
  const away = (lat, lon) => Math.hypot(view.sx(lon) - x, view.sy(lat) - y);
  const broker = brokerAt(state, view, x, y);
  if (broker) return { broker, text: `${broker.id}\n${throughput(broker.load)}, ${count(broker.subscribers)} people` };
  const hit = ({ bornMs, lat, lon, detail }) =>
    nowMs - bornMs < EVENT_MS && away(lat, lon) < radiusOf(detail?.severity) + 3;
  const event = state.events.findLast(hit);
  if (event) {
    const { message, severity } = event.detail ?? {};
    return { text: lines(event.note, message, severity && `severity ${value(severity)}`, time(event.time_s)) };
  }
  const place = [...state.places.values()].find(({ lat, lon }) => away(lat, lon) < PLACE_PX);
  if (place) return { text: lines(place.note, place.detail?.capacity && `room for ${value(place.detail.capacity)}`) };
  const slot = state.people.nearest(away, PERSON_PX);
  if (slot < 0) return null;
  const home = [...state.brokers.values()].find(({ index }) => index === state.people.broker[slot]);
  return { text: lines(state.people.nameOf(slot), home ? `served by ${home.id}` : "no broker") };
}

const lines = (...parts) => parts.filter(Boolean).join("\n");
