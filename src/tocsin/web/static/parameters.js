// A form for a channel's parameters: a field for each parameter by its type, positions from the map, and the values.

import { field, h } from "./dom.js";

const WHOLE = new Set(["TINYINT", "SMALLINT", "INT", "BIGINT"]);
const REAL = new Set(["FLOAT", "DOUBLE"]);
const PLACE_DECIMALS = 5;
/** Likely values for parameters with these names. */
const GUESSES = /** @type {Record<string, string>} */ ({ radius_m: "1000", kind: "fire", event: "fire", type: "fire" });

/**
 * Parameters that the session's user fills in have no field.
 * @param {{name: string, type: string, bound?: string}[]} declared
 * @param {{user: () => string, pick: () => Promise<{lat: number, lon: number}|null>}} from
 */
export function fieldsFor(declared, from) {
  const parameters = declared.filter(({ bound }) => !bound);
  const fields = parameters.map((parameter) => inputFor(parameter, from));
  const inputs = Object.fromEntries(fields.map((input) => [input.name, input]));
  const names = parameters.map(({ name }) => name);
  const places = names.filter((name) => /(^|_)lat$/.test(name) && inputs[lonOf(name)]);
  const buttons = places.map((name) =>
    h(
      "div",
      { class: "field" },
      h(
        "button",
        {
          type: "button",
          class: "pick-place",
          onclick: async () => {
            const place = await from.pick();
            if (!place) return;
            inputs[name].value = place.lat.toFixed(PLACE_DECIMALS);
            inputs[lonOf(name)].value = place.lon.toFixed(PLACE_DECIMALS);
            inputs[name].focus();
          },
        },
        "Pick on the map",
      ),
    ),
  );
  const note = declared.length ? "This channel is about you: it has no other parameters." : "This channel has no parameters.";
  if (!parameters.length) return [h("p", { class: "quiet full" }, note)];
  return [...fields.map((input) => field(input.name.replaceAll("_", " "), input)), ...buttons];
}

const lonOf = (name) => name.replace(/lat$/, "lon");

function inputFor({ name, type }, from) {
  const props = { name, id: `parameter-${name}`, required: true, autocomplete: "off" };
  let input;
  if (type === "BOOLEAN")
    input = h("select", props, h("option", { value: "true" }, "yes"), h("option", { value: "false" }, "no"));
  else if (WHOLE.has(type)) input = h("input", { ...props, type: "number", step: 1 });
  else if (REAL.has(type)) input = h("input", { ...props, type: "number", step: "any" });
  else if (type === "DATE") input = h("input", { ...props, type: "date" });
  else if (type === "TIMESTAMP") input = h("input", { ...props, type: "datetime-local", step: 1 });
  else input = h("input", { ...props, type: "text", spellcheck: false });
  if (type === "STRING" && /^(user|me|user_id|subscriber)$/.test(name)) input.value = from.user();
  else if (GUESSES[name] !== undefined) input.value = GUESSES[name];
  return input;
}

/** The values for JSON: numbers as numbers, times with their zone. */
export function valuesOf(form, parameters) {
  return Object.fromEntries(
    parameters.filter(({ bound }) => !bound).map(({ name, type }) => {
      const text = form.querySelector(`[name="${CSS.escape(name)}"]`).value;
      if (type === "BOOLEAN") return [name, text === "true"];
      if (WHOLE.has(type) || REAL.has(type)) return [name, Number(text)];
      if (type === "TIMESTAMP") return [name, new Date(text).toISOString()];
      return [name, text];
    }),
  );
}
