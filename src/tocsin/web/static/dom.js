// Functions that build elements. Data becomes text or an attribute, never markup: the page does not use innerHTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} tag
 * @param {Record<string, any>} [props] `class`, `on…` listeners, properties of the element; else attributes
 * @param {...(Node|string|number|null|undefined|false)} children
 * @returns {any}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && !name.startsWith("aria")) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

/** An SVG element. Styles come from classes, because the content security policy allows no inline style. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** A control with its label. @param {string} label @param {any} control with an id */
export function field(label, control) {
  return h("div", { class: "field" }, h("label", { htmlFor: control.id }, label), control);
}

/** A paragraph of secondary text. @param {string} text */
export const quiet = (text) => h("p", { class: "quiet" }, text);

/** Fill a list of definitions. @param {Element} list a dl element @param {any[]} facts pairs of name and text */
export function showFacts(list, facts) {
  list.replaceChildren(...facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text))));
}

/**
 * @param {[string, string][]} columns headings, and the classes of their cells
 * @param {(Node|string)[][]} rows texts, or td elements
 */
export function table(columns, rows) {
  const heads = columns.map(([text, name]) => h("th", { scope: "col", class: name === "num" ? "num" : "" }, text));
  const cell = (content, index) => (content instanceof Node ? content : h("td", { class: columns[index][1] }, content));
  const body = rows.map((cells) => h("tr", {}, ...cells.map(cell)));
  return h("table", { class: "grid" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...body));
}

/** @param {string} id @returns {any} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/** Set the text only if it differs, to avoid needless layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the children. The keyboard focus stays if there is again an element with the focused id. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement?.id : "";
  element.replaceChildren();
  append(element, children);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
