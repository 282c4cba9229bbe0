// The page: applies the rows of the stream to the state and passes the state to the views.

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
import { apply, empty, fromPicture, listedBrokers, servingBrokers } from "./state.js";
import { Stream } from "./stream.js";
import { SiteList } from "./sites.js";
import { SubscriberView } from "./subscriber_view.js";
import { TopicList } from "./topics.js";
import { TopicView } from "./topic_view.js";

const api = new Api();
const drawer = new Drawer();
const replay = new Replay(api);
let state = empty();
let lastState = /** @type {import("./state.js").State|null} */ (null); // null until the first picture
let isReplay = false;

const now = () => performance.now();
const chooseBroker = (id) => {
  map.chosen = id;
  map.requestFrame();
  brokerView.open(id, () => {
    map.chosen = "";
    map.requestFrame();
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
const topicView = new TopicView(api, drawer, () => state, isLive);
const chooseTopic = (name) => {
  map.chosenTopic = name;
  map.requestFrame();
  topicView.open(name, () => {
    map.chosenTopic = "";
    map.requestFrame();
  });
};
const controlsView = new ControlsView(api, drawer);
const parts = [
  new BrokerList(chooseBroker),
  new Measurements(),
  new Feed(),
  new ChannelList((name) => channelView.open(name)),
  new TopicList(chooseTopic),
  new SiteList(),
  new Legend(),
];

// -- views --

function show() {
  map.show(state);
  for (const part of parts) part.show(state, now());
  brokerView.show();
  channelView.show();
  topicView.show();
  showHeader();
  if (isReplay) replay.show(state.time_s);
  if (state.sites) document.title = `Tocsin: site ${state.sites.site}`;
  byId("map-empty").hidden = Boolean(
    state.streets.length ||
    state.people.placed ||
    state.places.size ||
    listedBrokers(state).some((broker) => Number.isFinite(broker.lat)),
  );
  setText(
    byId("map-empty"),
    lastState === null
      ? "Waiting for the first picture of the city"
      : "No positions yet. Brokers get one with --lat and --lon, people when they register with one.",
  );
}

function showHeader() {
  const { curves, balance } = state;
  setText(byId("clock"), lastState === null ? "" : time(state.time_s));
  if (isWall(state.time_s)) byId("clock").dateTime = new Date(state.time_s * 1000).toISOString();
  const totals = [
    ["brokers", count(servingBrokers(state).length)],
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

function setStatus(state, text) {
  byId("status").dataset.state = state;
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
    if (lastState === null) checkReplay(rows);
    if (isReplay) replay.refresh();
    state = lastState = fromPicture(lastState, rows, now());
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
        `The connection to the coordinator is lost (${reason}). `,
        lastState ? `The page shows the state of ${time(state.time_s)}. ` : "",
        `Next attempt in ${duration(Math.max(1, Math.round(waitMs / 1000)))}.`,
      ),
      h("button", { type: "button", onclick: () => stream.retryNow() }, "Try now"),
    );
  },
  denied(status, message) {
    setStatus("lost", "Signed out");
    signIn(
      status === 403
        ? `${message || "This token cannot read."}`
        : api.token
          ? `That token was refused${message ? `: ${message}` : ""}.`
          : "",
    );
  },
});

// -- sign-in --

function signIn(reason = "") {
  const dialog = byId("sign-in");
  if (reason) setText(byId("sign-in-why"), reason);
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

/** With a token the server is a coordinator. Without one it may be a replay, which needs no token. */
async function begin() {
  setStatus("", "Connecting");
  if (!api.token && !(await findReplay())) return signIn();
  stream.start();
}

/** Detect a replay by the times of its rows: this tab may still have the token of an earlier coordinator. */
function checkReplay(rows) {
  const latest_s = rows.reduce((latest, row) => Math.max(latest, row.time_s), 0);
  if (!isReplay && Math.abs(Date.now() / 1000 - latest_s) > 60) findReplay();
}

async function findReplay() {
  isReplay = await replay.find();
  if (isReplay) {
    stream.silentMs = Infinity; // a paused replay sends nothing
    setStatus("replay", "Replay");
    byId("sign-out").hidden = true;
    setText(byId("channels-empty"), "This recording has no channels.");
  }
  return isReplay;
}

startTheme(byId("theme"), () => map.recolour());
show();
begin();
// For tests and for the browser's console.
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
