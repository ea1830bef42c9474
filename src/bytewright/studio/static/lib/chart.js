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
import { formatTick, makeAxis } from "./axis.js";
import { h, newId, s } from "./dom.js";
import { formatFigure, isNumber } from "./format.js";
import { CHART_STEPS, clampIndex } from "./keys.js";

const MARGIN = { top: 10, right: 16, bottom: 38, left: 54 };

/** Return a chart in `element`; `update(options)` draws it. */
export function lineChart(element, { height = 300, signal } = {}) {
  const picture = s("svg", { role: "img", tabindex: 0, height });
  const legend = h("ul", { class: "legend" });
  const caption = h("figcaption", { class: "row" });
  const clip = newId("clip");
  element.classList.add("chart");
  element.replaceChildren(caption, picture, legend);
  let options = null;
  let cursor = null;

  const draw = () => {
    if (!options) return;
    const position = cursor?.position() ?? null; // the cursor stays where it is when data are added
    cursor = drawChart({ picture, legend, caption, clip }, makePlot(options, Math.max(240, element.clientWidth), height));
    if (position !== null) cursor.moveToValue(position);
  };
  const watcher = new ResizeObserver(draw);
  watcher.observe(element);
  signal?.addEventListener("abort", () => watcher.disconnect());

  const moveTo = (index) => cursor?.moveTo(index);
  picture.addEventListener("pointermove", (event) => cursor?.moveNear(event.clientX - picture.getBoundingClientRect().left));
  picture.addEventListener("pointerleave", () => moveTo(null));
  picture.addEventListener("blur", () => moveTo(null));
  picture.addEventListener("keydown", (event) => {
    if (!(event.key in CHART_STEPS) || !cursor) return;
    event.preventDefault();
    cursor.step(CHART_STEPS[event.key]);
  });
  return {
    update(next) {
      options = next;
      draw();
    },
  };
}

/** Return what the parts of a chart share: its options, the points that can be drawn, and the axes. */
function makePlot(options, width, height) {
  const { x, y } = options;
  const shift = (value) => value - (y.origin ?? 0);
  const isDrawable = ([a, b]) => isNumber(a) && isNumber(b) && (!y.log || shift(b) > 0) && (!x.log || a > 0);
  const series = options.series.map((each) => ({ ...each, points: each.points.filter(isDrawable) }));
  const references = (options.references ?? []).filter((each) => isNumber(each.y) && (!y.log || shift(each.y) > 0));
  const xs = series.flatMap((each) => each.points.map(([a]) => a));
  const ys = [...series.flatMap((each) => each.points.map(([, b]) => b)), ...references.map((each) => each.y)];
  const inner = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const xAxis = makeAxis(xs, { log: x.log, start: inner.left, end: inner.right, tight: true, count: Math.floor(width / 65) });
  const yAxis = makeAxis(
    (y.limits ?? ys).map(shift),
    { log: y.log, start: inner.bottom, end: inner.top, count: Math.floor(height / 55) },
  );
  return {
    ...{ options, width, height, inner, series, references },
    formatX: x.format ?? formatTick,
    formatY: y.format ?? formatTick,
    xOf: xAxis.pixelOf,
    yOf: (value) => yAxis.pixelOf(shift(value)),
    xTicks: xs.length ? xAxis.ticks.map((tick) => [tick, xAxis.pixelOf(tick)]) : [],
    yTicks: xs.length ? yAxis.ticks.map((tick) => [tick, yAxis.pixelOf(tick)]) : [], // without the origin
    stops: [...new Set(xs)].sort((a, b) => a - b), // the positions of the cursor
  };
}

/** Replace a chart by another one, and return the cursor of it. */
function drawChart({ picture, legend, caption, clip }, plot) {
  const { title = "", x, y } = plot.options;
  const marks = s("g", {});
  const xTitle = s("text", { x: plot.inner.right, y: plot.height - 4, "text-anchor": "end" }, x.label);
  picture.setAttribute("viewBox", `0 0 ${plot.width} ${plot.height}`);
  picture.setAttribute("aria-label", `${title}, ${y.label}, by ${x.label}. Arrow keys move the cursor.`);
  picture.replaceChildren(
    ...drawAxes(plot),
    xTitle,
    ...drawSeries(plot, clip),
    ...drawReferences(plot),
    ...(plot.stops.length ? [] : [drawEmpty(plot)]),
    marks,
  );
  caption.replaceChildren(h("b", {}, title), h("span", { class: "quiet" }, y.label));
  return new Cursor(plot, { marks, xTitle, values: drawLegend(legend, plot.series) });
}

function drawAxes({ inner, xTicks, yTicks, formatX, formatY }) {
  const content = [];
  for (const [tick, y] of yTicks) {
    content.push(s("line", { x1: inner.left, x2: inner.right, y1: y, y2: y, class: "grid" }));
    content.push(s("text", { x: inner.left - 7, y: y + 4, "text-anchor": "end" }, formatY(tick)));
  }
  content.push(s("line", { x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom, class: "axis" }));
  for (const [tick, x] of xTicks) {
    content.push(s("line", { x1: x, x2: x, y1: inner.bottom, y2: inner.bottom + 4, class: "axis" }));
    content.push(s("text", { x, y: inner.bottom + 17, "text-anchor": "middle" }, formatX(tick)));
  }
  return content;
}

function drawSeries({ inner, series, xOf, yOf }, clip) {
  const area = s(
    "clipPath",
    { id: clip },
    // A margin for the dots at both ends of the axis.
    s("rect", { x: inner.left - 4, y: inner.top - 2, width: inner.right - inner.left + 8, height: inner.bottom - inner.top + 4 }),
  );
  const body = s("g", { "clip-path": `url(#${clip})` });
  for (const each of series) {
    const points = each.points.map(([a, b]) => [xOf(a), yOf(b)]);
    const path = points.map(([a, b], index) => `${index ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    body.append(s("path", { d: path, class: `line ${styleOf(each)}`, style: { "--c": each.colour } }));
    const dots = each.dots || points.length === 1 ? points : [];
    body.append(...dots.map(([a, b]) => s("circle", { cx: a, cy: b, r: 2.8, class: "dot", style: { "--c": each.colour } })));
  }
  return [area, body];
}

function drawReferences({ inner, references, yOf }) {
  const content = [];
  for (const each of references) {
    const y = yOf(each.y);
    if (y < inner.top - 2 || y > inner.bottom + 2) continue;
    content.push(s("line", { x1: inner.left, x2: inner.right, y1: y, y2: y, class: "reference" }));
    content.push(s("text", { x: inner.right - 4, y: y - 6, "text-anchor": "end", class: "halo" }, each.label));
  }
  return content;
}

function drawEmpty({ options, inner }) {
  const middle = { x: (inner.left + inner.right) / 2, y: (inner.top + inner.bottom) / 2 };
  return s("text", { ...middle, "text-anchor": "middle" }, options.empty ?? "no data yet");
}

/** Fill the legend; return the elements for the values at the cursor, by series. */
function drawLegend(legend, series) {
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
  return values;
}

/** The cursor of a chart: a line at one of the positions of the data, whose values the legend shows. */
class Cursor {
  constructor(plot, { marks, xTitle, values }) {
    this.plot = plot;
    this.marks = marks;
    this.xTitle = xTitle;
    this.values = values;
    this.index = null;
  }

  /** Return where the cursor is on the horizontal axis; null without a cursor. */
  position() {
    return this.index === null ? null : this.plot.stops[this.index];
  }

  moveTo(index) {
    const { inner, stops, xOf, formatX } = this.plot;
    this.index = index;
    this.marks.replaceChildren();
    this.xTitle.removeAttribute("visibility");
    for (const value of this.values.values()) value.textContent = "";
    if (index === null || !stops.length) return;
    const x = xOf(stops[index]);
    this.marks.append(s("line", { x1: x, x2: x, y1: inner.top, y2: inner.bottom, class: "cursor" }));
    this.drawLabel(Math.min(Math.max(x, inner.left + 24), inner.right - 24), formatX(stops[index]));
    for (const each of this.plot.series) this.markPoint(each, stops[index]);
  }

  /** Write the position below the axis; the title of the axis is hidden if there is no room for both. */
  drawLabel(x, text) {
    const { inner } = this.plot;
    const label = s("text", { x, y: inner.bottom + 31, "text-anchor": "middle", class: "halo" }, text);
    this.marks.append(label);
    const end = x + label.getComputedTextLength() / 2 + 6;
    const isCovered = end > inner.right - this.xTitle.getComputedTextLength();
    if (isCovered) this.xTitle.setAttribute("visibility", "hidden");
  }

  /** Mark the point of a series at the cursor, and write its value into the legend. */
  markPoint(series, position) {
    const { options, xOf, yOf } = this.plot;
    const point = pointAtOrBefore(series.points, position);
    if (!point) return;
    const value = this.values.get(series);
    if (value) value.textContent = (options.y.formatValue ?? formatFigure)(point[1]);
    this.marks.append(s(
      "circle",
      { cx: xOf(point[0]), cy: yOf(point[1]), r: 3.6, class: "dot", style: { "--c": series.colour } },
    ));
  }

  /** Move the cursor to the first data at or after a position on the horizontal axis. */
  moveToValue(position) {
    const index = this.plot.stops.findIndex((stop) => stop >= position);
    this.moveTo(index < 0 ? null : index);
  }

  /** Move the cursor to the data nearest to a distance in pixels from the left. */
  moveNear(left) {
    const { stops, xOf } = this.plot;
    if (!stops.length) return;
    let best = 0;
    stops.forEach((stop, index) => {
      if (Math.abs(xOf(stop) - left) < Math.abs(xOf(stops[best]) - left)) best = index;
    });
    this.moveTo(best);
  }

  step(by) {
    const { stops } = this.plot;
    if (!stops.length) return;
    const from = this.index ?? (by > 0 ? -1 : stops.length);
    this.moveTo(clampIndex(from + by, stops.length - 1));
  }
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
