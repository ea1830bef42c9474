/**
 * Line charts as SVG, with labelled axes, a legend, and a cursor for mouse and keyboard.
 *
 *     const chart = lineChart(element, { height: 320, signal });
 *     chart.update({
 *       title: "Validation loss",
 *       x: { label: "step" }, y: { label: "nats per token", log: false, origin: 0 },
 *       series: [{ name: "tiny", colour: "var(--c0)", points: [[x, y], …], dashed: false, wide: false, dots: false }],
 *       references: [{ label: "entropy floor", y: 0.71 }],
 *       empty: "no records yet",
 *     });
 *
 * The options `x.format(value)` and `y.format(value)` return the labels of ticks, `y.formatValue(value)` the
 * values that the legend shows at the cursor. `y.origin` is subtracted from every value, for a log axis of
 * distances. `y.limits`, as [low, high], replaces the limits of the data. `empty` is shown if there are no
 * points. The height is fixed, so new data move nothing on the page.
 */
import { h, s } from "./dom.js";
import { formatFigure, isNumber } from "./format.js";

const MARGIN = { top: 10, right: 16, bottom: 38, left: 54 };

/** Return a chart in `element`; `update(options)` draws it. */
export function lineChart(element, { height = 300, signal } = {}) {
  const picture = s("svg", { role: "img", tabindex: 0, height });
  const legend = h("ul", { class: "legend" });
  const caption = h("figcaption", { class: "row" });
  element.classList.add("chart");
  element.replaceChildren(caption, picture, legend);
  let options = null;
  let drawn = null;

  const draw = () => {
    if (!options) return;
    const at = drawn?.at() ?? null; // the cursor stays where it is when data are added
    drawn = drawChart({ picture, legend, caption }, options, Math.max(240, element.clientWidth), height);
    if (at !== null) drawn.moveToValue(at);
  };
  const watcher = new ResizeObserver(draw);
  watcher.observe(element);
  signal?.addEventListener("abort", () => watcher.disconnect());

  const moveTo = (index) => drawn?.moveTo(index);
  picture.addEventListener("pointermove", (event) => drawn?.point(event.clientX - picture.getBoundingClientRect().left));
  picture.addEventListener("pointerleave", () => moveTo(null));
  picture.addEventListener("blur", () => moveTo(null));
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !drawn) return;
    event.preventDefault();
    drawn.step(steps[event.key]);
  });
  return {
    update(next) {
      options = next;
      draw();
    },
  };
}

function drawChart({ picture, legend, caption }, options, width, height) {
  const { title = "", x, y, references = [] } = options;
  const origin = y.origin ?? 0;
  const shift = (value) => value - origin;
  const series = options.series.map((each) => ({
    ...each,
    points: each.points.filter(([a, b]) => isNumber(a) && isNumber(b) && (!y.log || shift(b) > 0) && (!x.log || a > 0)),
  }));
  const marks = references.filter((each) => isNumber(each.y) && (!y.log || shift(each.y) > 0));
  const xs = series.flatMap((each) => each.points.map(([a]) => a));
  const ys = [...series.flatMap((each) => each.points.map(([, b]) => shift(b))), ...marks.map((each) => shift(each.y))];
  const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const xAxis = makeAxis(xs, { log: x.log, start: inner.left, end: inner.right, tight: true, count: Math.floor(width / 65) });
  const yAxis = makeAxis(
    y.limits ? y.limits.map(shift) : ys,
    { log: y.log, start: inner.bottom, end: inner.top, count: Math.floor(height / 55) },
  );
  const formatX = x.format ?? formatTick;
  const formatY = y.format ?? formatTick;

  const content = [];
  for (const tick of xs.length ? yAxis.ticks : []) {
    const place = yAxis.place(tick);
    content.push(s("line", { x1: inner.left, x2: inner.right, y1: place, y2: place, class: "grid" }));
    content.push(s("text", { x: inner.left - 7, y: place + 4, "text-anchor": "end" }, formatY(tick)));
  }
  content.push(s("line", { x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom, class: "axis" }));
  for (const tick of xs.length ? xAxis.ticks : []) {
    const place = xAxis.place(tick);
    content.push(s("line", { x1: place, x2: place, y1: inner.bottom, y2: inner.bottom + 4, class: "axis" }));
    content.push(s("text", { x: place, y: inner.bottom + 17, "text-anchor": "middle" }, formatX(tick)));
  }
  content.push(s("text", { x: inner.right, y: height - 4, "text-anchor": "end" }, x.label));
  const clip = `clip-${picture.dataset.clip ?? (picture.dataset.clip = Math.random().toString(36).slice(2))}`;
  content.push(s(
    "clipPath",
    { id: clip },
    // A margin for the dots at both ends of the axis.
    s("rect", { x: inner.left - 4, y: inner.top - 2, width: inner.right - inner.left + 8, height: inner.bottom - inner.top + 4 }),
  ));
  const body = s("g", { "clip-path": `url(#${clip})` });
  for (const each of series) {
    const points = each.points.map(([a, b]) => [xAxis.place(a), yAxis.place(shift(b))]);
    const path = points.map(([a, b], index) => `${index ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    body.append(s("path", { d: path, class: `line ${styleOf(each)}`, style: { "--c": each.colour } }));
    const dots = each.dots || points.length === 1 ? points : [];
    body.append(...dots.map(([a, b]) => s("circle", { cx: a, cy: b, r: 2.8, class: "dot", style: { "--c": each.colour } })));
  }
  content.push(body);
  for (const mark of marks) {
    const place = yAxis.place(shift(mark.y));
    if (place < inner.top - 2 || place > inner.bottom + 2) continue;
    content.push(s("line", { x1: inner.left, x2: inner.right, y1: place, y2: place, class: "reference" }));
    content.push(s("text", { x: inner.right - 4, y: place - 6, "text-anchor": "end", class: "halo" }, mark.label));
  }
  if (!xs.length) {
    const middle = { x: (inner.left + inner.right) / 2, y: (inner.top + inner.bottom) / 2 };
    content.push(s("text", { ...middle, "text-anchor": "middle" }, options.empty ?? "no data yet"));
  }
  const cursor = s("g", {});
  content.push(cursor);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label", `${title}, ${y.label}, by ${x.label}. Arrow keys move the cursor.`);
  picture.replaceChildren(...content);
  caption.replaceChildren(h("b", {}, title), h("span", { class: "quiet" }, y.label));

  const values = new Map();
  legend.replaceChildren(
    ...series.filter((each) => each.name).map((each) => {
      const value = h("b", {});
      values.set(each, value);
      return h(
        "li",
        { style: { "--c": each.colour }, title: each.name },
        h("i", { class: styleOf(each) }),
        h("span", {}, each.name),
        value,
      );
    }),
  );

  const stops = [...new Set(xs)].sort((a, b) => a - b);
  let at = null;
  const moveTo = (index) => {
    at = index;
    cursor.replaceChildren();
    for (const value of values.values()) value.textContent = "";
    if (index === null || !stops.length) return;
    const place = xAxis.place(stops[index]);
    cursor.append(s("line", { x1: place, x2: place, y1: inner.top, y2: inner.bottom, class: "cursor" }));
    const labelPlace = Math.min(Math.max(place, inner.left + 24), inner.right - 24);
    cursor.append(s(
      "text",
      { x: labelPlace, y: inner.bottom + 31, "text-anchor": "middle", class: "halo" },
      formatX(stops[index]),
    ));
    for (const each of series) {
      const near = pointAtOrBefore(each.points, stops[index]);
      if (!near) continue;
      if (values.has(each)) values.get(each).textContent = (y.formatValue ?? formatFigure)(near[1]);
      cursor.append(s(
        "circle",
        { cx: xAxis.place(near[0]), cy: yAxis.place(shift(near[1])), r: 3.6, class: "dot", style: { "--c": each.colour } },
      ));
    }
  };
  const moveToValue = (value) => {
    const index = stops.findIndex((stop) => stop >= value);
    moveTo(index < 0 ? null : index);
  };
  const point = (left) => {
    if (!stops.length) return;
    let best = 0;
    stops.forEach((stop, index) => {
      if (Math.abs(xAxis.place(stop) - left) < Math.abs(xAxis.place(stops[best]) - left)) best = index;
    });
    moveTo(best);
  };
  const step = (by) => {
    if (stops.length) moveTo(Math.min(stops.length - 1, Math.max(0, (at ?? (by > 0 ? -1 : stops.length)) + by)));
  };
  return { moveTo, moveToValue, point, step, at: () => (at === null ? null : stops[at]) };
}

function styleOf(series) {
  return series.dashed ? "dashed" : series.wide ? "wide" : "";
}

/** Return the last point at or before x, if the series reaches to x. */
function pointAtOrBefore(points, x) {
  if (!points.length || x < points[0][0] || x > points.at(-1)[0]) return null;
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle - 1;
  }
  return points[low];
}

/** Return an axis for values: place(value) in pixels, and ticks. `tight`: limits are those of the data. */
export function makeAxis(values, { log = false, start, end, tight = false, count = 6 }) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(low <= high)) [low, high] = log ? [1, 10] : [0, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const scale = log ? Math.log10 : (value) => value;
  if (!tight && log) [low, high] = [low / 1.15, high * 1.15];
  if (!tight && !log) {
    const step = niceStep((high - low) / Math.max(2, count));
    [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }
  const [from, to] = [scale(low), scale(high)];
  const place = (value) => start + ((scale(value) - from) / (to - from)) * (end - start);
  return { place, ticks: log ? logTicks(low, high, count) : linearTicks(low, high, count), low, high };
}

function niceStep(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  const share = size / power;
  return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

function linearTicks(low, high, count) {
  const step = niceStep((high - low) / Math.max(2, count));
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.8) return linearTicks(low, high, count);
  const shares = decades > count ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const share of shares) {
      const tick = Number((share * 10 ** power).toPrecision(6));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length >= 2 ? ticks : linearTicks(low, high, count);
}

/** Return all digits of a tick, which are few: different ticks must have different labels. */
function formatTick(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(6)).toExponential().replace("e-", "e−");
  const power = size < 10000 ? 0 : Math.min(4, Math.floor(Math.log10(size) / 3));
  const scaled = Number((value / 1000 ** power).toPrecision(6));
  return scaled.toLocaleString("en", { maximumFractionDigits: 8 }) + ["", " k", " M", " B", " T"][power];
}
