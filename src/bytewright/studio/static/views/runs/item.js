/** A run in the list of the view Runs. */
import { h } from "../../lib/dom.js";
import { formatFigure, formatInteger, formatQuantity, formatSeconds, isNumber } from "../../lib/format.js";

/** Return the list item of a run. `colour` is its colour in the chart, or null if it is not selected. */
export function drawItem(run, { colour, onToggle }) {
  const style = colour === null ? {} : { "accent-color": colour };
  const input = h("input", { type: "checkbox", dataset: { run: run.id }, style });
  input.checked = colour !== null;
  input.addEventListener("change", onToggle);
  const share = isNumber(run.num_steps) && run.num_steps > 0 ? Math.min(1, (run.step ?? 0) / run.num_steps) : null;
  return h(
    "li",
    { class: colour === null ? "" : "selected" },
    h(
      "label",
      {},
      input,
      h("span", { class: "name", title: run.name }, run.name),
      h("span", { class: `state ${run.state}` }, run.state === "reading" ? "reading …" : run.state),
      h("span", { class: "sub" }, drawFigures(run)),
      run.state === "running" && share !== null && h("span", { class: "progress", style: { "--share": `${100 * share}%` } }),
    ),
  );
}

function drawFigures(run) {
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
    const steps = run.state === "complete" ? formatQuantity(run.step, "step") : `step ${formatInteger(run.step)}${total}`;
    figures.push(h("span", {}, steps));
  }
  if (isNumber(run.seconds_left)) figures.push(h("span", {}, `${formatSeconds(run.seconds_left)} left`));
  if (run.state === "broken") figures.push(h("span", { class: "reason" }, run.detail));
  return figures;
}
