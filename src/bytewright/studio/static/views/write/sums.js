/** The sums of a text in the view Write, and the chart of its tokens. */
import { lineChart } from "../../lib/chart.js";
import { figure, h } from "../../lib/dom.js";
import { formatBits } from "../../lib/format.js";

/** Return the sums in bits over the tokens of a branch, and over those that have true probabilities. */
export function sumBits(branch) {
  const total = { bits: 0, bitsOfTrue: 0, true: 0, expected: 0, numTrue: 0 };
  for (const token of branch.tokens) {
    total.bits += token.bits ?? 0;
    if (typeof token.true_bits === "number") {
      total.numTrue += 1;
      total.true += token.true_bits;
      total.bitsOfTrue += token.bits;
      total.expected += token.before?.expected_excess ?? 0;
    }
  }
  return total;
}

export class Sums {
  constructor(signal) {
    this.figures = h("dl", { class: "figures write-figures" });
    this.chartBox = h("div", {});
    this.chart = lineChart(this.chartBox, { height: 210, signal });
    this.frame = 0;
  }

  /** Draw the sums in the next frame, once for many tokens. */
  show(branch, hasTruth) {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      this.drawFigures(branch ?? { tokens: [] }, hasTruth);
      this.drawChart(branch ?? { tokens: [] }, hasTruth);
    });
  }

  drawFigures(branch, hasTruth) {
    const total = sumBits(branch);
    const count = branch.tokens.length;
    const rows = [["Tokens", String(count), ""]];
    // All sums are over the same tokens, so that the excess is the difference of the two before it.
    const numSummed = hasTruth ? total.numTrue : count;
    const sum = (name, value, digits) => {
      const mean = numSummed ? `${formatBits(value / numSummed, digits)} / token` : "";
      rows.push([name, numSummed ? formatBits(value, 1) : "–", mean]);
    };
    if (hasTruth) {
      rows.push(["In the grammar", String(numSummed), "summed here"]);
      sum("Expected excess", total.expected, 3);
      sum("Model, bits", total.bitsOfTrue, 2); // these three are one row
      sum("True, bits", total.true, 2);
      sum("Excess, bits", total.bitsOfTrue - total.true, 3);
    } else sum("Model, bits", total.bits, 2);
    this.figures.replaceChildren(...rows.map((row) => figure(...row)));
  }

  drawChart(branch, hasTruth) {
    const points = (key) => branch.tokens.map((token, index) => [index + 1, token[key]]);
    const series = [{ name: "model", colour: "var(--c1)", points: points("bits") }];
    if (hasTruth) series.unshift({
      name: "grammar",
      colour: "var(--c2)",
      wide: true, // the model's line is drawn on it, and both stay visible
      points: points("true_bits"),
    });
    this.chart.update({ title: "Surprise of each token", x: { label: "token" }, y: { label: "bits" }, series });
  }
}
