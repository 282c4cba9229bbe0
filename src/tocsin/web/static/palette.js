// The page's colours for canvases, which cannot use CSS variables: read from theme.css in the current theme.

const NAMES = [
  "map",
  "surface",
  "ink",
  "muted",
  "line",
  "edge",
  "street",
  "accent",
  "alarm",
  "warn",
  "shelter",
  "no-broker",
];
const BROKER_COLOURS = 8;

/** The CSS colour of a broker. Colours repeat when there are more brokers than colours. */
export const brokerVariable = (index) => (index < 0 ? "var(--no-broker)" : `var(--b${index % BROKER_COLOURS})`);

/** @returns {any} */
export function readPalette() {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const palette = Object.fromEntries(NAMES.map((name) => [name, read(name)]));
  const brokers = Array.from({ length: BROKER_COLOURS }, (_, index) => read(`b${index}`));
  probe.remove();
  return { ...palette, brokers, pixelColours: [...brokers, palette["no-broker"]].map(pixelOf) };
}

/** A colour as one 32-bit pixel of an ImageData (little-endian, as on every machine that runs a browser). */
function pixelOf(colour) {
  const [r, g, b] = (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** The same colour, partly transparent. */
export function faded(colour, alpha) {
  const [r, g, b] = (colour.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

const KEY = "tocsin.theme";

/** The theme of the system until the user chooses light or dark. */
export function startTheme(button, changed) {
  const root = document.documentElement;
  const chosen = localStorage.getItem(KEY);
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const update = () => {
    button.setAttribute("aria-pressed", String(isDark()));
    changed();
  };
  button.setAttribute("aria-label", "Dark colours");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem(KEY, root.dataset.theme);
    update();
  });
  system.addEventListener("change", update);
  update();
}
