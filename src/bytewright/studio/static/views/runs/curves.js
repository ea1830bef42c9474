/** The curves of the selected runs in the view Runs, as options of a chart, with the floor that they share. */
import { formatFigure, isNumber } from "../../lib/format.js";

export const METRICS = {
  loss: { title: "Loss", unit: "nats per token", hasFloor: true },
  bits_per_byte: { title: "Bits per byte", unit: "on windows of the validation text", hasFloor: true },
  lr: { title: "Learning rate", unit: "learning rate" },
  gradient_norm: { title: "Gradient norm", unit: "norm" },
  tokens_per_second: { title: "Speed", unit: "tokens per second" },
};
export const AXES = { step: "Steps", tokens: "Tokens", seconds: "Time" };
const AXIS_LABELS = { step: "steps", tokens: "tokens", seconds: "seconds of training" };
const MAX_DOTS = 40; // a curve with more points has none

export class Curves {
  /** `data` is a map from ids of runs to {columns, rows}. Runs without a curve are left out. */
  constructor(runs, { metric, axis, data, colourOf }) {
    this.runs = runs.filter(isDrawn);
    this.metric = metric;
    this.axis = axis;
    this.data = data;
    this.colourOf = colourOf;
    const drawn = this.runs.map((run) => ({ run, series: this.makeSeries(run) }));
    const converged = drawn.filter(({ run }) => run.state !== "diverged"); // a diverged run can leave the chart
    const scaled = converged.length ? converged : drawn;
    this.series = drawn.flatMap(({ series }) => series);
    this.scaled = scaled.flatMap(({ series }) => series); // what the vertical axis must show
    this.floor = this.findFloor();
  }

  needsFloor() {
    return Boolean(METRICS[this.metric].hasFloor);
  }

  /** Return whether the runs share a floor, and all their values are above it. */
  isAboveFloor() {
    return this.floor !== null && this.series.every((each) => each.points.every(([, y]) => y > this.floor));
  }

  makeSeries(run) {
    const colour = this.colourOf(run.id);
    if (this.metric !== "loss") {
      const points = this.pointsOf(run, this.metric);
      return [{ name: run.name, colour, points, dots: points.length < MAX_DOTS }];
    }
    const training = this.pointsOf(run, "loss");
    const validation = this.pointsOf(run, "validation_loss");
    if (!validation.length) return [{ name: `${run.name}, training`, colour, points: training }];
    return [
      { name: "", colour, points: training, dashed: true },
      { name: run.name, colour, points: validation, dots: validation.length < MAX_DOTS },
    ];
  }

  pointsOf(run, column) {
    const data = this.data.get(run.id);
    if (!data) return [];
    const [x, y] = [data.columns.indexOf(this.axis), data.columns.indexOf(column)];
    return data.rows.filter((row) => row[x] !== null && row[y] !== null).map((row) => [row[x], row[y]]);
  }

  /** Return the floor if all runs have the same, or null: different texts have different entropies. */
  findFloor() {
    if (!this.runs.length || !this.needsFloor() || this.hasDifferentFloors()) return null;
    const floors = this.runs.map((run) => (this.metric === "loss" ? run.floor_nats : run.floor));
    return floors.every(isNumber) ? Math.min(...floors) : null;
  }

  /** Return whether two runs have floors that are known and differ. */
  hasDifferentFloors() {
    const bits = this.runs.map((run) => run.floor).filter(isNumber);
    return bits.some((each) => Math.abs(each - bits[0]) > 1e-3 * each);
  }

  /** Return the options of the chart: of the distances to the floor if `isDistance`, or else of the values. */
  describe(isDistance) {
    const { floor } = this;
    const { title: name, unit } = METRICS[this.metric];
    const hasValidation = this.series.some((each) => each.dashed);
    const lossTitle = hasValidation ? "Validation loss on windows (training loss dotted)" : "Training loss";
    const title = this.metric === "loss" ? lossTitle : name;
    return {
      title: isDistance ? `${title} above the entropy floor of ${formatFigure(floor)}` : title,
      x: { label: AXIS_LABELS[this.axis] },
      y: { label: unit, log: isDistance, origin: isDistance ? floor : 0, limits: this.findLimits(isDistance) },
      series: this.series,
      references: floor !== null && !isDistance ? [{ label: `entropy floor ${formatFigure(floor)}`, y: floor }] : [],
    };
  }

  /** Return limits of the vertical axis; they leave out the steep start of a loss, unless the axis is a log one. */
  findLimits(isDistance) {
    if (!this.needsFloor()) return null;
    const values = this.scaled.flatMap((each) => each.points.map(([, y]) => y)).sort((a, b) => a - b);
    if (isDistance) return [values[0], values.at(-1)];
    if (values.length < 8) return null;
    const high = values[Math.floor(0.93 * (values.length - 1))];
    return [this.floor ?? values[0], Math.max(high, values[0] * 1.02)];
  }
}

/** Return whether a run has a curve: an imported run and one that has just started have none. */
function isDrawn(run) {
  return Boolean(run?.has_curve);
}
