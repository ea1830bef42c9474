/** The view Runs: all runs of the folder, live curves with the entropy floor, comparison, samples, reports. */
import { getJson, isAbort, showError, streamEvents } from "../lib/api.js";
import { lineChart } from "../lib/chart.js";
import { choice, debounce, h, select } from "../lib/dom.js";
import { formatQuantity } from "../lib/format.js";
import { seriesColour } from "../lib/theme.js";
import { AXES, Curves, METRICS } from "./runs/curves.js";
import { drawDetails } from "./runs/details.js";
import { drawItem } from "./runs/item.js";

const MAX_SELECTED = 8;
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
    this.failures = new Map(); // id → why its settings could not be fetched
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
    this.settingsProblem = h("div", { hidden: true });
    this.details = h("div", { class: "details" });
    const controls = this.buildControls();
    const list = h("div", { class: "row" }, this.filter, this.sort);
    const curves = h("section", { class: "card", "aria-label": "Curves" }, controls, this.chartElement);
    this.parts = [
      h("header", {}, h("h1", {}, "Runs"), this.count, this.lost),
      h(
        "div",
        { class: "sides" },
        h("section", { class: "card side", "aria-label": "List of runs" }, list, this.list),
        h("div", { class: "content" }, curves, this.settingsProblem, this.details),
      ),
    ];
  }

  /** Return the controls of the chart. */
  buildControls() {
    this.distance = h("input", { type: "checkbox" });
    this.distance.checked = this.isDistance;
    this.distance.addEventListener("change", () => {
      this.isDistance = this.distance.checked;
      this.context.setParams({ floor: this.isDistance ? null : "0" });
      this.drawChart();
    });
    this.knownFloor = h("span", {}, "distance to the floor");
    this.unknownFloor = h("span", {}, "floor unknown");
    this.differentFloors = h("span", {}, "different floors");
    const text = h("span", { class: "either" }, this.knownFloor, this.unknownFloor, this.differentFloors);
    this.distanceLabel = h("label", { class: "check" }, this.distance, text);
    const metrics = Object.entries(METRICS).map(([key, each]) => [key, each.title]);
    return h(
      "div",
      { class: "row controls" },
      choice("Metric", metrics, this.metric, (key) => this.setAxes({ metric: key })),
      choice("Horizontal axis", Object.entries(AXES), this.axis, (key) => this.setAxes({ axis: key })),
      this.distanceLabel,
    );
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
    const first = active.length ? active : sorted.filter((run) => run.has_curve).slice(0, 1);
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
    this.drawSettingsProblem();
  }

  /** Return the colour of a selected run. */
  colourOf(id) {
    return seriesColour(this.colours.get(id));
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
        if (state === "open") this.retrySettings();
      },
      onEvent: (name, data) => this.receive(name, data),
    }).catch((error) => {
      if (!isAbort(error)) this.lost.textContent = error.message;
    });
  }

  async fetchSettings(id) {
    this.failures.delete(id);
    try {
      const { settings } = await getJson(`/api/runs/${id}/settings`, { signal: this.context.signal });
      this.settings.set(id, settings);
      this.drawDetails();
    } catch (error) {
      if (isAbort(error)) return;
      this.failures.set(id, error);
    }
    this.drawSettingsProblem();
  }

  /** Fetch the settings of the selected runs again that could not be fetched. */
  retrySettings() {
    for (const id of this.selected) if (this.failures.has(id)) this.fetchSettings(id);
  }

  /** Show why settings are missing. This is not one of the details, which are drawn again at each event. */
  drawSettingsProblem() {
    const id = this.selected.find((each) => this.failures.has(each));
    this.settingsProblem.hidden = id === undefined;
    this.settingsProblem.replaceChildren();
    if (id === undefined) return;
    const message = `The settings of ${this.runs.get(id).name} are missing. ${this.failures.get(id).message}`;
    showError(this.settingsProblem, new Error(message), { retry: () => this.retrySettings() });
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
    this.count.textContent = `${formatQuantity(this.runs.size, "run")} in ${this.context.studio.folder}${active}`;
    if (!this.runs.size) {
      this.list.replaceChildren(h(
        "li",
        { class: "none" },
        h("p", {}, "This folder has no runs yet."),
        h("p", { class: "quiet" }, "Start one in a shell; it appears here at once:"),
        h("code", {}, `bytewright train tiny --make-data --out ${this.context.studio.argument}/tiny`),
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
    if (this.items.get(run.id)?.key !== key) {
      const colour = this.selected.includes(run.id) ? this.colourOf(run.id) : null;
      this.items.set(run.id, { key, item: drawItem(run, { colour, onToggle: () => this.toggle(run.id) }) });
    }
    return this.items.get(run.id).item;
  }

  drawChart() {
    const curves = new Curves(this.selected.map((id) => this.runs.get(id)), {
      metric: this.metric,
      axis: this.axis,
      data: this.data,
      colourOf: (id) => this.colourOf(id),
    });
    const isAbove = curves.isAboveFloor();
    this.distance.disabled = !isAbove;
    this.showFloor(curves);
    this.distanceLabel.title = isAbove
      ? "Subtract the entropy of the text, on a log axis"
      : "Needs runs on the same text with a known entropy, with losses above it";
    const empty = this.selected.length ? "no records yet" : this.runs.size ? "select a run" : "no runs yet";
    this.chart.update({ ...curves.describe(this.isDistance && isAbove), empty });
  }

  /** Show at the check box whether the selected runs share a floor. Without selected runs it is invisible. */
  showFloor(curves) {
    let shown = this.knownFloor;
    if (curves.needsFloor() && curves.floor === null) {
      shown = curves.hasDifferentFloors() ? this.differentFloors : this.unknownFloor;
    }
    for (const text of shown.parentElement.children) text.classList.toggle("off", text !== shown);
    this.distanceLabel.classList.toggle("off", !this.selected.length);
  }

  drawDetails() {
    const runs = this.selected.map((id) => this.runs.get(id)).filter(Boolean);
    const parts = drawDetails(runs, {
      settings: this.settings,
      samples: this.samples,
      colourOf: (id) => this.colourOf(id),
    });
    const isOpen = this.details.querySelector("details")?.open;
    const scrolls = [...this.details.querySelectorAll(".sample blockquote")].map((each) => each.scrollTop);
    this.details.replaceChildren(...parts);
    if (isOpen) this.details.querySelector("details")?.setAttribute("open", "");
    this.details.querySelectorAll(".sample blockquote").forEach((each, index) => {
      each.scrollTop = scrolls[index] ?? 0;
    });
  }
}
