// Building elements. Data only ever becomes text or an attribute, never markup: there is no innerHTML on this page.

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
    else if (name === "colour") element.style.background = value;
    else if (name in element && !name.startsWith("aria")) /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

/** An SVG element; styles come from classes, because the page's policy allows no inline style. */
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

/** A control with its label. @param {string} words @param {any} control with an id */
export function field(words, control, more = "") {
  return h("div", { class: `field ${more}` }, h("label", { htmlFor: control.id }, words), control);
}

/** @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** Text that is written only when it changes, so that nothing is laid out for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Children replaced; keyboard focus stays where it was if an element with the same id comes back. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement?.id : "";
  element.replaceChildren();
  append(element, children);
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
