/**
 * Elements and controls. Children are nodes or text; text never becomes markup.
 *
 *     h("p", { class: "quiet", onclick: handler, hidden: true }, "text", h("b", {}, more))
 *     s("path", { d: "M0 0", class: "line" })        // SVG
 */
const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element. `on…` are listeners, `dataset` and `style` objects, others attributes. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let numIds = 0;

/** Return an id that no other element has. */
export function newId(prefix = "id") {
  numIds += 1;
  return `${prefix}-${numIds}`;
}

/** Return an entry of a <dl class="figures">: a name, a value, and a remark below it. */
export function figure(name, value, remark = "", className = "") {
  return h("div", { class: className }, h("dt", {}, name), h("dd", {}, value, h("small", {}, remark)));
}

/** Return a label above a control. `hint` is a quiet line below it. */
export function field(label, control, hint = "") {
  control.id ||= newId("field");
  const note = hint ? h("small", { id: newId("hint"), class: "quiet" }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

/**
 * Return a slider with its label and value. Options: label, value, onInput(value), format(value), and
 * either `values` (the list of positions) or min, max and step. The returned element has get() and set(value).
 */
export function slider({ label, value, values = null, min = 0, max = 1, step = 1, format = String, onInput }) {
  const position = (wanted) => (values ? nearest(values, wanted) : wanted);
  const read = () => (values ? values[Number(input.value)] : Number(input.value));
  const input = h(
    "input",
    { type: "range", id: newId("slider"), min: values ? 0 : min, max: values ? values.length - 1 : max, step: values ? 1 : step },
  );
  const output = h("output", { for: input.id });
  const show = (shown = read()) => {
    output.textContent = format(shown);
    input.setAttribute("aria-valuetext", output.textContent);
    const low = Number(input.min);
    input.style.setProperty("--share", `${(100 * (Number(input.value) - low)) / (Number(input.max) - low || 1)}%`);
  };
  input.value = position(value);
  input.addEventListener("input", () => {
    show();
    onInput?.(read());
  });
  show();
  const heading = h("div", { class: "row" }, h("label", { for: input.id }, label), output);
  const element = h("div", { class: "field slider" }, heading, input);
  element.get = read;
  element.set = (wanted) => {
    input.value = position(wanted);
    show(wanted); // exactly, also between two positions
  };
  element.input = input;
  return element;
}

function nearest(values, wanted) {
  let best = 0;
  values.forEach((each, index) => {
    if (Math.abs(each - wanted) < Math.abs(values[best] - wanted)) best = index;
  });
  return best;
}

/** Return a <select>. `options` are [value, text] pairs; the element's `value` is the selected value. */
export function select(options, value, onChange) {
  const element = h("select", {}, options.map(([key, text]) => h("option", { value: key }, text)));
  element.value = value ?? options[0]?.[0] ?? "";
  if (onChange) element.addEventListener("change", () => onChange(element.value));
  return element;
}

/** Return a group of buttons of which one is pressed. `options` are [value, text] pairs. */
export function choice(label, options, value, onChange) {
  const name = newId("choice");
  const group = h(
    "fieldset",
    { class: "choice" },
    h("legend", { class: "hidden" }, label),
    options.map(([key, text]) => {
      const input = h("input", { type: "radio", name, id: newId("option"), value: key });
      input.checked = key === value;
      input.addEventListener("change", () => onChange(key));
      return [input, h("label", { for: input.id }, text)];
    }),
  );
  return group;
}

/** Scroll a container until an element in it is visible there; the page is not scrolled. */
export function scrollWithin(container, element) {
  const outer = container.getBoundingClientRect();
  const inner = element.getBoundingClientRect();
  if (inner.top < outer.top) container.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) container.scrollTop += inner.bottom - outer.bottom;
}

/** Return a function that calls `work` once after calls have paused for `milliseconds`. */
export function debounce(work, milliseconds, signal = null) {
  let timer = 0;
  signal?.addEventListener("abort", () => clearTimeout(timer));
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}
