// A shape for each kind of emergency, so that kinds differ without colour. Paths are in a box from -10 to 10.

const SHAPES = /** @type {Record<string, string>} */ ({
  flame: "M0,-10C1,-5 7,-2 7,4A7,6.500 0 0 1 -7,4C-7,1 -5,-1 -4,-3C-3,-1 -2,0 -1,0C-2,-4 -1,-8 0,-10Z",
  drop: "M0,-10C4,-4 7,-0.500 7,3.500A7,6.500 0 0 1 -7,3.500C-7,-0.500 -4,-4 0,-10Z",
  cross: "M-3,-9H3V-3H9V3H3V9H-3V3H-9V-3H-3Z",
  diamond: "M0,-10L10,0L0,10L-10,0Z",
  triangle: "M0,-9.500L9.500,8H-9.500Z",
  bolt: "M3,-10L-7,2H-1L-3,10L7,-3H1Z",
  hexagon: "M-5,-9H5L10,0L5,9H-5L-10,0Z",
  square: "M-8,-8H8V8H-8Z",
  bars: "M-9,-8.500H9V-4H-9ZM-9,-2.200H5V2.300H-9ZM-9,4.100H1V8.600H-9Z",
  burst:
    "M0,-10L2.200,-4.600L7.100,-7.100L4.600,-2.200L10,0L4.600,2.200L7.100,7.100L2.200,4.600L0,10L-2.200,4.600L-7.100,7.100L-4.600,2.200L-10,0L-4.600,-2.200L-7.100,-7.100L-2.200,-4.600Z",
  star: "M0,-10L2.900,-3.100L10,-3.100L4.200,1.500L6.200,9L0,4.600L-6.200,9L-4.200,1.500L-10,-3.100L-2.900,-3.100Z",
});

const MEANINGS = /** @type {[RegExp, string][]} */ ([
  [/fire|smoke|burn/i, "flame"],
  [/flood|water|rain|tsunami/i, "drop"],
  [/medic|injur|health|ambul/i, "cross"],
  [/crash|traffic|accident|collision|road/i, "diamond"],
  [/quake|earth|collapse|slide/i, "triangle"],
  [/power|outage|lightning|electric/i, "bolt"],
  [/storm|tornado|wind|hurricane/i, "bars"],
  [/chem|gas|hazard|toxic|spill/i, "hexagon"],
  [/explos|blast|bomb/i, "burst"],
  [/crime|shoot|police|robber|riot|attack/i, "star"],
]);
const OTHERS = ["square", "hexagon", "diamond", "triangle", "star", "bolt"];
const paths = /** @type {Map<string, Path2D>} */ (new Map());

const CACHED = 500;
const shapes = /** @type {Map<string, string>} */ (new Map());

/** The name of a kind's shape: by the meaning of its name, else by a hash of its name. */
export function shapeOf(kind) {
  let shape = shapes.get(kind);
  if (shape === undefined) {
    if (shapes.size > CACHED) shapes.clear(); // a note may be any text
    shapes.set(kind, (shape = findShape(kind)));
  }
  return shape;
}

function findShape(kind) {
  for (const [meaning, shape] of MEANINGS) if (meaning.test(kind)) return shape;
  let sum = 0;
  for (const letter of kind) sum = (sum * 31 + letter.charCodeAt(0)) % 9973;
  return OTHERS[sum % OTHERS.length];
}

export const outlineOf = (shape) => SHAPES[shape];

/** @returns {Path2D} */
export function pathOf(shape) {
  let path = paths.get(shape);
  if (!path) paths.set(shape, (path = new Path2D(SHAPES[shape])));
  return path;
}

export const HOUSE = "M0,-9L9,-1H6.500V8H2V2.500H-2V8H-6.500V-1H-9Z";
export const housePath = () => {
  const path = paths.get("house") ?? new Path2D(HOUSE);
  paths.set("house", path);
  return path;
};
