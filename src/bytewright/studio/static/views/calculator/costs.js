/** The predicted costs in the view Calculator: figures, bars of their parts, and the table of a recipe. */
import { figure, h } from "../../lib/dom.js";
import { formatBytes, formatCount, formatEnergy, formatFlops, formatInteger, formatSeconds, formatShare, isNumber } from "../../lib/format.js";
import { seriesColour } from "../../lib/theme.js";

const MOMENTS = {
  loss: "while computing the loss",
  norm: "in the backward pass, final norm",
  ffn: "in the backward pass, feed-forward layer",
  attention: "in the backward pass, attention layer",
  update: "while updating the weights",
};

export class Costs {
  constructor() {
    this.figures = h("dl", { class: "figures" });
    this.bars = h("div", { class: "cost-bars" });
    this.recipe = h("pre", { tabindex: 0 });
  }

  /** Show an answer of the server. */
  draw(answer) {
    this.drawFigures(answer);
    this.bars.replaceChildren(
      drawBar("Parameters", Object.entries(answer.parameters), formatCount),
      drawBar("Compute per token, forward pass", Object.entries(answer.flops_per_token), formatFlops),
      drawBar(`Peak memory, ${MOMENTS[answer.memory_moment] ?? answer.memory_moment}`, Object.entries(answer.memory), formatBytes),
    );
    this.recipe.textContent = answer.recipe;
  }

  drawFigures(answer) {
    const { costs } = answer;
    this.figures.replaceChildren(
      figure("Parameters", formatCount(costs.parameters), formatInteger(costs.parameters)),
      figure("Compute of the run", formatFlops(costs.flops), `${formatFlops(answer.training_flops_per_token)} per token`),
      figure(
        "Tokens",
        formatCount(costs.num_tokens),
        costs.has_assumed_tokens ? "20 per parameter" : `${formatCount(answer.tokens_per_step)} per step`,
      ),
      figure(
        "Peak memory",
        formatBytes(costs.memory_bytes),
        `${costs.fits === false ? "does not fit" : "of"} ${formatBytes(costs.available_bytes)}`,
        costs.fits === false ? "bad" : "",
      ),
      figure(
        "Largest batch",
        costs.largest_batch < 1e6 ? formatInteger(costs.largest_batch) : formatCount(costs.largest_batch),
        costs.largest_batch === 0 ? "not even one sequence fits" : "sequences that fit",
      ),
      figure(
        "Time",
        isNumber(costs.seconds) ? formatSeconds(costs.seconds) : "unknown",
        isNumber(costs.tokens_per_second) ? `${formatCount(costs.tokens_per_second)} tokens/s` : "no measured speed",
      ),
      figure("Utilisation", isNumber(costs.mfu) ? formatShare(costs.mfu) : "–", "of the peak (MFU)"),
      figure(
        "Energy",
        formatEnergy(costs.kilowatt_hours),
        isNumber(costs.watts) ? `at ${formatInteger(costs.watts)} W` : "power not known",
      ),
    );
  }
}

/** Return a bar of shares with a list of its parts. */
function drawBar(title, parts, format) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const shown = parts.filter(([, value]) => value > 0).map(([name, value], index) => ({
    name: name.replaceAll("_", " "),
    value,
    share: value / total,
    colour: seriesColour(index),
  }));
  return h(
    "figure",
    { class: "cost-bar" },
    h("figcaption", { class: "row" }, h("h3", {}, title), h("b", { class: "end" }, format(total))),
    h(
      "div",
      { class: "track", "aria-hidden": "true" },
      shown.map((each) => h("span", { style: { "flex-grow": String(each.share), "--c": each.colour }, title: each.name })),
    ),
    h(
      "ul",
      {},
      shown.map((each) => h(
        "li",
        { style: { "--c": each.colour } },
        h("i", {}),
        h("span", {}, each.name),
        h("b", {}, format(each.value)),
        h("small", { class: "quiet" }, formatShare(each.share)),
      )),
    ),
  );
}
