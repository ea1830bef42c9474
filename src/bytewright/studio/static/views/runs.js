/** The view Runs: all runs of the folder, live curves with the entropy floor, comparison, samples, reports. */
import { getJson, isAbort, streamEvents } from "../lib/api.js";
import { lineChart } from "../lib/chart.js";
import { choice, debounce, h, select } from "../lib/dom.js";
import { formatFigure, formatInteger, formatSeconds, isNumber } from "../lib/format.js";
import { seriesColour } from "../lib/theme.js";
import { drawDetails } from "./runs/details.js";

const MAX_SELECTED = 8;
const METRICS = {
  loss: { title: "Loss", unit: "nats per token", hasFloor: true },
  bits_per_byte: { title: "Bits per byte", unit: "on windows of the validation text", hasFloor: true },
  lr: { title: "Learning rate", unit: "learning rate" },
  gradient_norm: { title: "Gradient norm", unit: "norm" },
  tokens_per_second: { title: "Speed", unit: "tokens per second" },
};
const AXES = { step: "Steps", tokens: "Tokens", seconds: "Time" };
const SORTS = [["newest", "Newest"], ["name", "Name"], ["loss", "Lowest loss"]];

export async function mount(element, context) {
  const view = new RunsView(element, context);
  await view.start();
}

class RunsView {
  constructor(element, context) {
    this.context = context;
    this.runs = new Map(); // id → summary
    this.data = new Map(); // id → {columns, rows}
    this.samples = new Map();
    this.settings = new Map();
    this.items = new Map(); // id → {key, item} of the list
    this.selected = [];
    this.hasUserSelected = false; // until then, the view selects runs itself
    this.colours = new Map(); // id → number of the colour, kept while selected
    this.metric = context.params.get("metric") in METRICS ? context.params.get("metric") : "loss";
    this.axis = context.params.get("x") in AXES ? context.params.get("x") : "step";
    this.isDistance = context.params.get("floor") !== "0";
    this.stream = null;
    this.element = element;
    this.build();
    // A browser opens six connections to a server at most: pages in the background must not occupy them.
    document.addEventListener("visibilitychange", () => this.follow(), { signal: context.signal });
  }

  build() {
    const { signal } = this.context;
    this.count = h("p", {});
    this.lost = h("p", { class: "error", role: "status" });
    this.filter = h("input", { type: "search", placeholder: "Filter by name or state", "aria-label": "Filter the runs" });
    this.filter.addEventListener("input", debounce(() => this.drawList(), 80, signal));
    this.sort = select(SORTS, this.context.params.get("sort") ?? "newest", (value) => {
      this.context.setParams({ sort: value === "newest" ? null : value });
      this.drawList();
    });
    this.sort.setAttribute("aria-label", "Sort the runs");
    this.list = h("ul", { class: "runs" });
    this.chartElement = h("figure", {});
    this.chart = lineChart(this.chartElement, { height: 360, signal });
    this.distance = h("input", { type: "checkbox" });
    this.distance.checked = this.isDistance;
    this.distance.addEventListener("change", () => {
      this.isDistance = this.distance.checked;
      this.context.setParams({ floor: this.isDistance ? null : "0" });
      this.drawChart();
    });
    this.knownFloor = h("span", {}, "distance to the floor");
    this.unknownFloor = h("span", { class: "off" }, "floor unknown");
    const text = h("span", { class: "either" }, this.knownFloor, this.unknownFloor);
    this.distanceLabel = h("label", { class: "check" }, this.distance, text);
    this.details = h("div", { class: "details" });
    const controls = h(
      "div",
      { class: "row controls" },
      choice(
        "Metric",
        Object.entries(METRICS).map(([key, each]) => [key, each.title]),
        this.metric,
        (key) => this.setAxes({ metric: key }),
      ),
      choice("Horizontal axis", Object.entries(AXES), this.axis, (key) => this.setAxes({ axis: key })),
      this.distanceLabel,
    );
    this.parts = [
      h("header", {}, h("h1", {}, "Runs"), this.count, this.lost),
      h(
        "div",
        { class: "sides" },
        h(
          "section",
          { class: "card side", "aria-label": "List of runs" },
          h("div", { class: "row" }, this.filter, this.sort),
          this.list,
        ),
        h(
          "div",
          { class: "content" },
          h("section", { class: "card", "aria-label": "Curves" }, controls, this.chartElement),
          this.details,
        ),
      ),
    ];
  }

  async start() {
    const { runs } = await getJson("/api/runs", { signal: this.context.signal });
    for (const run of runs) this.runs.set(run.id, run);
    const wanted = (this.context.params.get("ids") ?? "").split(",").filter((id) => this.runs.has(id));
    this.setSelection(wanted.length ? [...new Set(wanted)].slice(0, MAX_SELECTED) : this.chooseFirst());
    this.drawList();
    this.element.append(...this.parts); // all at once, so that nothing moves
  }

  /** Return the ids to select at first: the active runs, or else the newest one that has records. */
  chooseFirst() {
    const sorted = this.sorted([...this.runs.values()]);
    const active = sorted.filter((run) => run.state === "running").slice(0, 3);
    const first = active.length ? active : sorted.filter((run) => isNumber(run.loss)).slice(0, 1);
    return (first.length ? first : sorted.slice(0, 1)).map((run) => run.id);
  }

  setAxes({ metric = this.metric, axis = this.axis }) {
    this.metric = metric;
    this.axis = axis;
    this.context.setParams({ metric: metric === "loss" ? null : metric, x: axis === "step" ? null : axis });
    this.drawChart();
  }

  toggle(id) {
    this.hasUserSelected = true;
    const isSelected = this.selected.includes(id);
    const next = isSelected ? this.selected.filter((each) => each !== id) : [...this.selected, id].slice(-MAX_SELECTED);
    this.context.setParams({ ids: next.join(",") });
    this.context.announce(`${this.runs.get(id)?.name} ${isSelected ? "removed from" : "added to"} the comparison`);
    this.setSelection(next);
    this.drawList();
  }

  setSelection(ids) {
    this.selected = ids;
    for (const id of [...this.colours.keys()]) if (!ids.includes(id)) this.colours.delete(id);
    for (const id of ids) {
      if (this.colours.has(id)) continue;
      const used = new Set(this.colours.values());
      this.colours.set(id, [...Array(MAX_SELECTED).keys()].find((number) => !used.has(number)));
    }
    this.follow();
    this.drawChart();
    this.drawDetails();
  }

  /** Follow the selected runs if the page is visible, and get their settings. */
  follow() {
    this.stream?.abort();
    if (!document.hidden) this.openStream();
    for (const id of this.selected) if (!this.settings.has(id)) this.fetchSettings(id);
  }

  /** Open the stream of events, which also has the records of the selected runs. */
  openStream() {
    this.stream = new AbortController();
    const signal = AbortSignal.any([this.stream.signal, this.context.signal]);
    streamEvents(`/api/runs/events?follow=${this.selected.join(",")}`, {
      signal,
      reconnect: true,
      onState: (state) => {
        this.lost.textContent = state === "lost" ? "The connection to the server is lost; trying again." : "";
      },
      onEvent: (name, data) => this.receive(name, data),
    }).catch((error) => {
      if (!isAbort(error)) this.lost.textContent = error.message;
    });
  }

  async fetchSettings(id) {
    try {
      const { settings } = await getJson(`/api/runs/${id}/settings`, { signal: this.context.signal });
      this.settings.set(id, settings);
      this.drawDetails();
    } catch (error) {
      if (!isAbort(error)) this.settings.set(id, {});
    }
  }

  receive(name, data) {
    if (name === "runs") {
      const ids = new Set(data.ids);
      for (const id of [...this.runs.keys()]) if (!ids.has(id)) this.runs.delete(id);
      for (const run of data.runs) this.runs.set(run.id, run);
      const left = this.selected.filter((id) => ids.has(id));
      if (left.length < this.selected.length) {
        this.context.setParams({ ids: left.join(",") });
        this.setSelection(left);
      } else if (!left.length && !this.hasUserSelected && this.runs.size) {
        this.setSelection(this.chooseFirst());
      }
      this.drawList();
      if (data.runs.some((run) => this.selected.includes(run.id))) {
        this.drawChart();
        this.drawDetails();
      }
    } else if (name === "records") {
      const known = data.restart ? [] : (this.data.get(data.id)?.rows ?? []);
      this.data.set(data.id, { columns: data.columns, rows: known.concat(data.rows) });
      this.drawChart();
    } else if (name === "samples") {
      this.samples.set(data.id, data.samples);
      this.drawDetails();
    }
  }

  sorted(runs) {
    const by = this.sort.value;
    const active = (run) => (run.state === "running" ? 0 : 1);
    const loss = (run) => run.validation_loss ?? run.loss ?? Infinity;
    return runs.sort((a, b) => {
      if (by === "name") return a.name.localeCompare(b.name, "en", { numeric: true });
      if (by === "loss") return loss(a) - loss(b) || a.name.localeCompare(b.name);
      return active(a) - active(b) || (b.started ?? "").localeCompare(a.started ?? "") || a.name.localeCompare(b.name);
    });
  }

  drawList() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const runs = this.sorted([...this.runs.values()]).filter(
      (run) => words.every((word) => `${run.name} ${run.state}`.toLowerCase().includes(word)),
    );
    const numActive = [...this.runs.values()].filter((run) => run.state === "running").length;
    const active = numActive ? `, ${numActive} of them running` : "";
    this.count.textContent = `${formatInteger(this.runs.size)} ${this.runs.size === 1 ? "run" : "runs"} in ${this.context.studio.folder}${active}`;
    if (!this.runs.size) {
      this.list.replaceChildren(h(
        "li",
        { class: "none" },
        h("p", {}, "This folder has no runs yet."),
        h("p", { class: "quiet" }, "Start one in a shell; it appears here at once:"),
        h("code", {}, "bytewright train tiny --make-data"),
      ));
      return;
    }
    if (!runs.length) {
      this.list.replaceChildren(h("li", { class: "none quiet" }, "No run matches the filter."));
      return;
    }
    const focused = document.activeElement?.dataset?.run;
    const items = runs.map((run) => this.keepItem(run));
    const isSame = items.length === this.list.children.length && items.every((item, index) => item === this.list.children[index]);
    if (!isSame) this.list.replaceChildren(...items);
    if (focused && document.activeElement?.dataset?.run !== focused) {
      this.list.querySelector(`input[data-run="${focused}"]`)?.focus({ preventScroll: true });
    }
  }

  /** Return the list item of a run: a new one only if its contents changed, so that clicks are not lost. */
  keepItem(run) {
    const key = JSON.stringify([run, this.selected.includes(run.id), this.colours.get(run.id)]);
    if (this.items.get(run.id)?.key !== key) this.items.set(run.id, { key, item: this.drawItem(run) });
    return this.items.get(run.id).item;
  }

  drawItem(run) {
    const isSelected = this.selected.includes(run.id);
    const style = isSelected ? { "accent-color": seriesColour(this.colours.get(run.id)) } : {};
    const input = h("input", { type: "checkbox", dataset: { run: run.id }, style });
    input.checked = isSelected;
    input.addEventListener("change", () => this.toggle(run.id));
    const share = isNumber(run.num_steps) && run.num_steps > 0 ? Math.min(1, (run.step ?? 0) / run.num_steps) : null;
    const figures = [];
    const loss = run.validation_loss ?? run.loss;
    if (isNumber(loss)) {
      const [name, title] = isNumber(run.validation_loss)
        ? ["validation loss", "nats per token, on windows of the validation text"]
        : ["training loss", "nats per token"];
      figures.push(h("span", { title }, `${name} ${formatFigure(loss)}`));
    }
    if (isNumber(run.step) && run.state !== "imported" && run.state !== "broken") {
      const total = run.num_steps ? ` of ${formatInteger(run.num_steps)}` : "";
      const step = formatInteger(run.step);
      figures.push(h("span", {}, run.state === "complete" ? `${step} steps` : `step ${step}${total}`));
    }
    if (isNumber(run.seconds_left)) figures.push(h("span", {}, `${formatSeconds(run.seconds_left)} left`));
    if (run.state === "broken") figures.push(h("span", { class: "reason" }, run.detail));
    return h(
      "li",
      { class: isSelected ? "selected" : "" },
      h(
        "label",
        {},
        input,
        h("span", { class: "name", title: run.name }, run.name),
        h("span", { class: `state ${run.state}` }, run.state === "reading" ? "reading …" : run.state),
        h("span", { class: "sub" }, figures),
        run.state === "running" && share !== null && h("span", { class: "progress", style: { "--share": `${100 * share}%` } }),
      ),
    );
  }

  drawChart() {
    const metric = METRICS[this.metric];
    const series = [];
    const scaled = []; // the series that the vertical axis must show: a diverged run can leave the chart
    const floors = [];
    const drawn = this.selected.map((id) => this.runs.get(id)).filter((run) => isDrawn(run));
    for (const id of this.selected) {
      const run = this.runs.get(id);
      const data = this.data.get(id);
      const numBefore = series.length;
      if (!isDrawn(run)) continue;
      const colour = seriesColour(this.colours.get(id));
      const floor = this.metric === "loss" ? run.floor_nats : this.metric === "bits_per_byte" ? run.floor : null;
      if (isNumber(floor)) floors.push({ floor, bits: run.floor });
      const points = (column) => {
        if (!data) return [];
        const [x, y] = [data.columns.indexOf(this.axis), data.columns.indexOf(column)];
        return data.rows.filter((row) => row[x] !== null && row[y] !== null).map((row) => [row[x], row[y]]);
      };
      if (this.metric === "loss") {
        const validation = points("validation_loss");
        series.push({
          name: validation.length ? "" : `${run.name}, training`,
          colour,
          points: points("loss"),
          dashed: validation.length > 0,
        });
        if (validation.length) series.push({ name: run.name, colour, points: validation, dots: validation.length < 40 });
      } else series.push({ name: run.name, colour, points: points(this.metric), dots: points(this.metric).length < 40 });
      if (run.state !== "diverged") scaled.push(...series.slice(numBefore));
    }
    // A floor is shown only if all selected runs have the same: different texts have different entropies.
    const isEqual = (each) => Math.abs(each.bits - floors[0].bits) < 1e-3 * each.bits;
    const isShared = floors.length > 0 && floors.length === drawn.length && floors.every(isEqual);
    const floor = metric.hasFloor && isShared ? Math.min(...floors.map((each) => each.floor)) : null;
    const isAbove = floor !== null && series.every((each) => each.points.every(([, y]) => y > floor));
    const isDistance = this.isDistance && isAbove;
    this.distance.disabled = !isAbove;
    const isUnknown = Boolean(metric.hasFloor) && !isAbove;
    this.knownFloor.classList.toggle("off", isUnknown);
    this.unknownFloor.classList.toggle("off", !isUnknown);
    this.distanceLabel.title = isAbove
      ? "Subtract the entropy of the text, on a log axis"
      : "Needs runs on the same text with a known entropy, with losses above it";
    const lossTitle = series.some((each) => each.dashed) ? "Validation loss on windows (training loss dotted)" : "Training loss";
    const title = this.metric === "loss" ? lossTitle : metric.title;
    this.chart.update({
      title: isDistance ? `${title} above the entropy floor of ${formatFigure(floor)}` : title,
      x: { label: { step: "steps", tokens: "tokens", seconds: "seconds of training" }[this.axis] },
      y: {
        label: metric.unit,
        log: isDistance,
        origin: isDistance ? floor : 0,
        limits: limitsOf(scaled.length ? scaled : series, { floor, metric, isDistance }),
      },
      series,
      references: floor !== null && !isDistance ? [{ label: `entropy floor ${formatFigure(floor)}`, y: floor }] : [],
      empty: this.selected.length ? "no records yet" : this.runs.size ? "select a run" : "no runs yet",
    });
  }

  drawDetails() {
    const runs = this.selected.map((id) => this.runs.get(id)).filter(Boolean);
    const parts = drawDetails(runs, {
      settings: this.settings,
      samples: this.samples,
      colourOf: (id) => seriesColour(this.colours.get(id)),
    });
    const isOpen = this.details.querySelector("details")?.open;
    const scrolls = [...this.details.querySelectorAll(".sample blockquote")].map((each) => each.scrollTop);
    this.details.replaceChildren(...parts);
    if (isOpen) this.details.querySelector("details")?.setAttribute("open", "");
    [...this.details.querySelectorAll(".sample blockquote")].forEach((each, index) => (each.scrollTop = scrolls[index] ?? 0));
  }
}

/** Return whether a run has a curve: an imported run and one that has just started have none. */
function isDrawn(run) {
  return Boolean(run) && run.state !== "broken" && (isNumber(run.loss) || isNumber(run.validation_loss));
}

/** Return limits of the vertical axis; they leave out the steep start of a loss, unless the axis is a log one. */
function limitsOf(series, { floor, metric, isDistance }) {
  if (!metric.hasFloor) return null;
  const values = series.flatMap((each) => each.points.map(([, y]) => y)).sort((a, b) => a - b);
  if (isDistance) return [values[0], values.at(-1)];
  if (values.length < 8) return null;
  const high = values[Math.floor(0.93 * (values.length - 1))];
  return [floor ?? values[0], Math.max(high, values[0] * 1.02)];
}
