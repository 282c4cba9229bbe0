// The state of the page: answers of GET /v1/edge, and what changed between two of them. No drawing, no requests.

/**
 * @typedef {{name: string, parent: string|null, state: string, address: string, usage: Record<string, number>,
 *   inbox_bytes: number, rows_per_s: number, late_rows: number, bytes_up: number, raw_bytes: number,
 *   operators: (string|{id: string})[]}} EdgeNode
 * @typedef {{operator: string, source: string, target: string}} Move
 * @typedef {{key: number, time_s: number, kind: string, text: string, why?: string}} Entry
 */

const KEPT = 200;
const UPPER_PCT = 60;

export const emptyEdge = () => ({
  answers: 0,
  time_s: 0,
  generation: 0,
  running: false,
  upper_pct: UPPER_PCT,
  recoveries: 0,
  outbox: 0,
  /** @type {Map<string, EdgeNode>} */ nodes: new Map(),
  /** @type {any[]} */ queries: [],
  /** @type {Entry[]} */ feed: [],
  /** @type {Move[]} */ moves: [], // of the latest answer
  /** @type {Map<string, number>} */ bytesUpPerS: new Map(),
  moved: 0,
  keys: 0,
});

/** Fold an answer into the state. @param {ReturnType<typeof emptyEdge>} state @param {any} answer @param {number} now_s */
export function applyEdge(state, answer, now_s) {
  const before = state.nodes;
  const isFirst = state.answers === 0;
  const elapsed_s = now_s - state.time_s;
  const nodes = new Map(answer.nodes.map((node) => [node.name, node]));
  state.moves = isFirst || answer.generation !== state.generation ? [] : movesBetween(before, nodes);
  if (!isFirst) {
    for (const [name, node] of nodes) noteState(state, before.get(name), node, now_s);
    if (answer.generation > state.generation) {
      const alive = answer.nodes.filter((node) => node.state !== "dead").length;
      note(state, now_s, "generation", `Generation ${answer.generation}`, `${alive} of ${nodes.size} nodes take part`);
    }
    noteMoves(state, now_s);
    for (const [name, node] of nodes) {
      const sent = (node.bytes_up ?? 0) - (before.get(name)?.bytes_up ?? 0);
      if (elapsed_s > 0) state.bytesUpPerS.set(name, Math.max(0, sent) / elapsed_s);
    }
  }
  Object.assign(state, {
    nodes,
    time_s: now_s,
    answers: state.answers + 1,
    generation: answer.generation,
    running: answer.running !== false,
    recoveries: answer.recoveries,
    outbox: answer.outbox,
    queries: answer.queries,
    upper_pct: answer.rules?.upper ?? UPPER_PCT,
  });
  return state;
}

function movesBetween(before, after) {
  const places = new Map();
  for (const [name, node] of before) for (const operator of idsOf(node)) places.set(operator, name);
  /** @type {Move[]} */ const moves = [];
  for (const [name, node] of after)
    for (const operator of idsOf(node)) {
      const source = places.get(operator);
      // While operators are in transit, both nodes may report them: count the move when the source has released them.
      if (source !== undefined && source !== name && !idsOf(after.get(source)).includes(operator))
        moves.push({ operator, source, target: name });
    }
  return moves;
}

function noteMoves(state, now_s) {
  /** @type {Map<string, string[]>} */ const ways = new Map();
  for (const { operator, source, target } of state.moves) {
    const way = `${source} → ${target}`;
    ways.set(way, [...(ways.get(way) ?? []), operator]);
  }
  for (const [way, operators] of ways) {
    const subject = operators.length === 1 ? "1 operator" : `${operators.length} operators`;
    note(state, now_s, "move", `${subject}: ${way}`, operators.join(", "));
  }
  state.moved += state.moves.length;
}

function noteState(state, before, node, now_s) {
  if (before === undefined) return note(state, now_s, "back", `${node.name} registered`);
  if (before.state === node.state) return;
  if (node.state === "dead") note(state, now_s, "dead", `${node.name} is dead`);
  else if (before.state === "dead") note(state, now_s, "back", `${node.name} is back`);
}

function note(state, time_s, kind, text, why = "") {
  state.keys += 1;
  state.feed.unshift({ key: state.keys, time_s, kind, text, why });
  state.feed.length = Math.min(state.feed.length, KEPT);
}

export const idsOf = (node) => (node?.operators ?? []).map((operator) => (typeof operator === "string" ? operator : operator.id));

/** The query of an operator, and its kind: `UserUse/partial@leaf-1` is a partial of UserUse. */
export function partsOf(operator) {
  const [query, rest = ""] = operator.split("/");
  const [kind] = rest.split("@");
  return { query, kind: kind.replace(/-\d+$/, "") };
}

/** The largest of the loads in percent, as the negotiation uses it. */
export const loadOf = (node) =>
  Math.max(0, ...["memory_pct", "cpu_pct", "network_pct"].map((name) => node.usage?.[name] ?? 0));

export const isOver = (state, node) => node.state !== "dead" && loadOf(node) > state.upper_pct;

/** The nearest living ancestor, to which a node sends now; null at the root. */
export function livingParent(state, node) {
  let parent = node.parent;
  while (parent !== null && parent !== undefined && state.nodes.get(parent)?.state === "dead")
    parent = state.nodes.get(parent)?.parent ?? null;
  return parent ?? null;
}

/** The nodes in the order of the tree, the root first, each with its depth and its children. */
export function treeOf(state) {
  const children = new Map([...state.nodes.keys()].map((name) => [name, /** @type {string[]} */ ([])]));
  for (const node of state.nodes.values()) if (node.parent && children.has(node.parent)) children.get(node.parent)?.push(node.name);
  const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });
  const roots = [...state.nodes.values()].filter((node) => !node.parent || !state.nodes.has(node.parent));
  /** @type {{name: string, depth: number, children: string[]}[]} */ const ordered = [];
  const visit = (name, depth) => {
    const below = (children.get(name) ?? []).sort(byName);
    ordered.push({ name, depth, children: below });
    for (const child of below) visit(child, depth + 1);
  };
  for (const root of roots.map((node) => node.name).sort(byName)) visit(root, 0);
  return ordered;
}
