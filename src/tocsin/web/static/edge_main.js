// The page of the edge tier at the root: it polls GET /v1/edge and passes the state to the views.

import { Alerts, EdgeFeed, QueryList } from "./edge_lists.js";
import { applyEdge, emptyEdge } from "./edge_state.js";
import { TreeView, showKeys } from "./edge_tree.js";
import { Api } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, duration, rate, time } from "./format.js";
import { startTheme } from "./palette.js";

const POLL_MS = 500;
const LONGEST_MS = 8_000;
const ALERTS = "tocsin.edge.alerts";

const wanted = alertsFromAddress(); // before Api removes the fragment
const api = new Api();
const state = emptyEdge();
const tree = new TreeView();
const feed = new EdgeFeed();
const queries = new QueryList((operator) => tree.colourOf(operator));
const alerts = new Alerts();
let failures = 0;
let timer = 0;

/** `#alerts=` with JSON: where the page subscribes to alerts. It stays with the tab, as the secret does. */
function alertsFromAddress() {
  const text = new URLSearchParams(location.hash.slice(1)).get("alerts") ?? sessionStorage.getItem(ALERTS);
  if (text) sessionStorage.setItem(ALERTS, text);
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

function show() {
  tree.show(state);
  showKeys(state, tree);
  feed.show(state, performance.now());
  queries.show(state);
  const nodes = [...state.nodes.values()];
  const sum = (name) => nodes.reduce((total, node) => total + (node[name] ?? 0), 0);
  const raw = sum("raw_bytes");
  const totals = [
    ["generation", count(state.generation)],
    ["nodes alive", `${nodes.filter((node) => node.state !== "dead").length} of ${nodes.length}`],
    ["operators", count(nodes.reduce((total, node) => total + (node.operators?.length ?? 0), 0))],
    ["rows/s", rate(nodes.reduce((total, node) => total + (node.rows_per_s ?? 0), 0))],
    ["late", count(sum("late_rows"))],
    ["bytes up ÷ raw", raw ? `${Math.round((100 * sum("bytes_up")) / raw)}%` : "–"],
  ];
  const list = byId("totals");
  if (list.childElementCount !== totals.length)
    list.replaceChildren(...totals.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
  totals.forEach(([, text], index) => setText(list.children[index].lastElementChild, text));
}

function setStatus(kind, text) {
  byId("status").dataset.state = kind;
  setText(byId("status-text"), text);
}

async function poll() {
  clearTimeout(timer);
  let waitMs = POLL_MS;
  try {
    const answer = await api.get("/v1/edge");
    failures = 0;
    applyEdge(state, answer, Date.now() / 1000);
    setStatus(state.running ? "live" : "paused", state.running ? "Live" : "A generation starts");
    byId("banner").hidden = true;
    byId("sign-out").hidden = !api.token;
    show();
    tree.animate(state);
  } catch (error) {
    if (error.status === 401 || error.status === 403) return signIn(api.token ? `That secret was refused: ${error.message}` : "");
    failures += 1;
    waitMs = Math.min(LONGEST_MS, POLL_MS * 2 ** (failures - 1));
    setStatus("lost", "Connection lost");
    const shown = state.answers ? ` The page shows the tree of ${time(state.time_s)}.` : "";
    byId("banner").replaceChildren(
      h("span", {}, `The root does not answer.${shown} Next attempt in ${duration(Math.max(1, Math.round(waitMs / 1000)))}.`),
      h("button", { type: "button", onclick: poll }, "Try now"),
    );
    byId("banner").hidden = failures < 2;
  }
  timer = setTimeout(poll, waitMs);
}

function signIn(reason = "") {
  setStatus("lost", "Signed out");
  if (reason) setText(byId("sign-in-why"), reason);
  byId("token").value = "";
  if (!byId("sign-in").open) byId("sign-in").showModal();
}

byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
byId("sign-in-form").addEventListener("submit", () => {
  api.use(byId("token").value);
  poll();
});
byId("sign-out").addEventListener("click", () => {
  clearTimeout(timer);
  api.use("");
  byId("sign-out").hidden = true;
  signIn();
});

document.body.classList.toggle("no-alerts", wanted === null);
byId("alerts-panel").hidden = wanted === null;
if (wanted !== null) alerts.open(wanted);
startTheme(byId("theme"), () => {});
show();
poll();
// For tests and for the browser's console.
Object.defineProperty(globalThis, "tocsin", { value: { state, tree, alerts } });
