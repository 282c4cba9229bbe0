// The page: rows come in, the state is brought up to date, the parts show it. Nothing here knows how any of them works.

import { Api } from "./api.js";
import { BrokerList } from "./brokers.js";
import { BrokerView } from "./broker_view.js";
import { ChannelList } from "./channels.js";
import { ChannelView } from "./channel_view.js";
import { ControlsView } from "./controls_view.js";
import { byId, h, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Feed } from "./feed.js";
import { count, duration, isWall, ratio, rate, throughput, time } from "./format.js";
import { Legend } from "./legend.js";
import { CityMap } from "./map.js";
import { Measurements } from "./measurements.js";
import { startTheme } from "./palette.js";
import { Replay } from "./replay.js";
import { apply, empty, fromPicture, listed, serving } from "./state.js";
import { Stream } from "./stream.js";
import { SubscriberView } from "./subscriber_view.js";

const api = new Api();
const drawer = new Drawer();
const replay = new Replay(api);
let state = empty();
let seen = /** @type {import("./state.js").State|null} */ (null); // null until the first picture
let isReplay = false;

const now = () => performance.now();
const chooseBroker = (id) => {
  map.chosen = id;
  map.ask();
  brokerView.open(id, () => {
    map.chosen = "";
    map.ask();
  });
};
const map = new CityMap({ chooseBroker });
const isLive = () => !isReplay;
const brokerView = new BrokerView(api, drawer, () => state, isLive);
const subscriberView = new SubscriberView(api, drawer, map);
const channelView = new ChannelView(
  api,
  drawer,
  () => state,
  isLive,
  (name) => subscriberView.open(name),
);
const controlsView = new ControlsView(api, drawer);
const parts = [
  new BrokerList(chooseBroker),
  new Measurements(),
  new Feed(),
  new ChannelList((name) => channelView.open(name)),
  new Legend(),
];

// -- showing --

function show() {
  map.show(state);
  for (const part of parts) part.show(state, now());
  brokerView.show();
  channelView.show();
  showHeader();
  if (isReplay) replay.show(state.time_s);
  byId("map-empty").hidden = Boolean(
    state.streets.length ||
    state.people.placed ||
    state.places.size ||
    listed(state).some((broker) => Number.isFinite(broker.lat)),
  );
  setText(
    byId("map-empty"),
    seen === null
      ? "Waiting for the first picture of the city"
      : "Nothing here has a place yet. Brokers get one with --lat and --lon, people by registering with one.",
  );
}

function showHeader() {
  const { curves, balance } = state;
  setText(byId("clock"), seen === null ? "" : time(state.time_s));
  if (isWall(state.time_s)) byId("clock").dateTime = new Date(state.time_s * 1000).toISOString();
  const totals = [
    ["brokers", count(serving(state).length)],
    ["people", count(balance.subscribers ?? state.people.slots.size)],
    ["cov", ratio(balance.cov)],
    ["p95", duration(curves.p95.last)],
    ["sent/s", rate(curves.notifications.last)],
    ["mean load", throughput(balance.mean_bytes_per_s)],
  ];
  const list = byId("totals");
  if (list.childElementCount !== totals.length)
    list.replaceChildren(...totals.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
  totals.forEach(([, text], index) => setText(list.children[index].lastElementChild, text));
}

function setStatus(word, text) {
  byId("status").dataset.state = word;
  setText(byId("status-text"), text);
}

function setBanner(...content) {
  byId("banner").replaceChildren(...content);
  byId("banner").hidden = content.length === 0;
}

// -- the stream --

const stream = new Stream(() => api.headers(), {
  open() {
    setStatus(isReplay ? "replay" : "live", isReplay ? "Replay" : "Live");
    setBanner();
    byId("sign-out").hidden = isReplay || !api.token;
  },
  picture(rows) {
    if (seen === null) recognise(rows);
    if (isReplay) replay.refresh();
    state = seen = fromPicture(seen, rows, now());
    show();
  },
  rows(rows) {
    apply(state, rows, now());
    show();
  },
  lost(reason, waitMs) {
    setStatus("lost", "Connection lost");
    setBanner(
      h(
        "span",
        {},
        `No news from the coordinator (${reason}). `,
        seen ? `What you see is from ${time(state.time_s)}. ` : "",
        `Trying again in ${duration(Math.max(1, Math.round(waitMs / 1000)))}.`,
      ),
      h("button", { type: "button", onclick: () => stream.retryNow() }, "Try now"),
    );
  },
  denied(status, message) {
    setStatus("lost", "Signed out");
    signIn(
      status === 403
        ? `${message || "This token may not look."}`
        : api.token
          ? `That token was refused${message ? `: ${message}` : ""}.`
          : "",
    );
  },
});

// -- who is looking --

function signIn(why = "") {
  const dialog = byId("sign-in");
  if (why) setText(byId("sign-in-why"), why);
  byId("token").value = "";
  if (!dialog.open) dialog.showModal();
}

byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
byId("sign-in-form").addEventListener("submit", () => {
  api.use(byId("token").value);
  begin();
});
byId("sign-out").addEventListener("click", () => {
  stream.stop();
  subscriberView.end();
  drawer.close();
  api.use("");
  setStatus("lost", "Signed out");
  byId("sign-out").hidden = true;
  signIn();
});
byId("open-subscriber").addEventListener("click", () => subscriberView.open());
byId("open-controls").addEventListener("click", () => controlsView.open());

/** A token means a coordinator; without one this may be a recording, which needs none. */
async function begin() {
  setStatus("", "Connecting");
  if (!api.token && !(await findReplay())) return signIn();
  stream.start();
}

/** This tab may have a token from a coordinator that ran here before: a picture of another time is a recording's. */
function recognise(rows) {
  const latest_s = rows.reduce((latest, row) => Math.max(latest, row.time_s), 0);
  if (!isReplay && Math.abs(Date.now() / 1000 - latest_s) > 60) findReplay();
}

async function findReplay() {
  isReplay = await replay.find();
  if (isReplay) {
    stream.silentMs = Infinity; // a recording that is paused says nothing
    setStatus("replay", "Replay");
    byId("sign-out").hidden = true;
    setText(byId("channels-empty"), "This recording tells nothing of channels.");
  }
  return isReplay;
}

startTheme(byId("theme"), () => map.recolour());
show();
begin();
// For tests and the curious: what the page knows.
Object.defineProperty(globalThis, "tocsin", {
  value: {
    get state() {
      return state;
    },
    map,
    stream,
    subscriber: subscriberView,
    api,
  },
});
