/** The view Calculator: sliders for a model and its training; the server predicts the costs. */
import { getJson, isAbort, postJson, showError } from "../lib/api.js";
import { choice, debounce, field, figure, h, select, slider } from "../lib/dom.js";
import { formatBytes, formatCount, formatEnergy, formatFigure, formatFlops, formatInteger, formatSeconds, formatShare, isNumber } from "../lib/format.js";
import { seriesColour } from "../lib/theme.js";

const LAYERS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 126];
const WIDTHS = [
  64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1600, 1792, 1920, 2048, 2560,
  3072, 4096, 5120, 6144, 8192, 12288, 16384,
];
const CONTEXTS = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];
const VOCABULARIES = [256, 512, 1024, 2048, 3072, 4096, 8192, 10000, 16384, 32000, 50257, 65536, 100256, 128256, 200000];
const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const TOKENS = Array.from({ length: 57 }, (_, index) => niceNumber(10 ** (6 + index / 6)));
const SIZES = Array.from({ length: 73 }, (_, index) => niceNumber(10 ** (6 + index / 12)));
const MOMENTS = {
  loss: "while computing the loss",
  norm: "in the backward pass, final norm",
  ffn: "in the backward pass, feed-forward layer",
  attention: "in the backward pass, attention layer",
  update: "while updating the weights",
};

export async function mount(element, context) {
  const choices = await getJson("/api/calculator", { signal: context.signal });
  new Calculator(element, context, choices).start();
}

class Calculator {
  constructor(element, context, choices) {
    this.context = context;
    this.choices = choices;
    this.shape = { ...choices.presets["gpt2-small"] };
    this.setup = { batch_size: 32, accumulate: 1, optimizer: "adamw", precision: "bf16", device: "h100", num_tokens: 0 };
    this.readParams();
    this.predict = debounce(() => this.fetch(), 60, context.signal);
    this.build(element);
  }

  readParams() {
    const { params } = this.context;
    for (const target of [this.shape, this.setup]) {
      for (const key of Object.keys(target)) {
        const text = params.get(key);
        if (text === null) continue;
        if (typeof target[key] === "boolean") target[key] = text === "true";
        else if (typeof target[key] === "number") target[key] = isNumber(Number(text)) ? Number(text) : target[key];
        else target[key] = text;
      }
    }
    // As in a recipe; the number of the preset may not divide the number of heads.
    if (params.get("num_heads") !== null && params.get("num_kv_heads") === null) this.shape.num_kv_heads = this.shape.num_heads;
  }

  build(element) {
    const size = (name, label, values) => slider({
      label,
      values: withValue(values, this.shape[name]),
      value: this.shape[name],
      format: formatInteger,
      onInput: (value) => this.change({ [name]: value }),
    });
    this.preset = select(
      [["", "own shape"], ...Object.keys(this.choices.presets).map((name) => [name, name])],
      this.findPreset(),
      (name) => name && this.setShape(this.choices.presets[name]),
    );
    this.wanted = slider({
      label: "Propose a shape by its parameters",
      values: SIZES,
      value: 1.2e8,
      format: formatCount,
      onInput: (value) => this.propose(value),
    });
    this.propose = debounce((value) => this.fetchProposal(value), 150, this.context.signal);
    this.sizes = h("div", { class: "sliders" });
    this.makeSizes = () => {
      this.sizes.replaceChildren(
        size("num_layers", "Layers", LAYERS),
        size("d_model", "Width (d_model)", WIDTHS),
        slider({
          label: "Heads × size of a head",
          values: divisors(this.shape.d_model),
          value: this.shape.num_heads,
          format: (value) => `${formatInteger(value)} × ${formatInteger(this.shape.d_model / value)}`,
          onInput: (value) => this.change({ num_heads: value, num_kv_heads: value }),
        }),
        slider({
          label: "Feed-forward width (d_ff)",
          min: 64,
          max: Math.max(64 * Math.ceil(this.shape.d_model / 8), this.shape.d_ff),
          step: this.shape.d_ff % 64 ? 1 : 64,
          value: this.shape.d_ff,
          format: formatInteger,
          onInput: (value) => this.change({ d_ff: value }),
        }),
        size("context_length", "Context, tokens", CONTEXTS),
        size("vocab_size", "Vocabulary", VOCABULARIES),
      );
    };
    this.makeSizes();
    this.tied = h("input", { type: "checkbox" });
    this.tied.checked = this.shape.tie_embeddings;
    this.tied.addEventListener("change", () => this.change({ tie_embeddings: this.tied.checked }));
    const train = (key) => (value) => {
      this.setup[key] = value;
      this.save();
    };
    this.parts = slider({
      label: "Accumulation steps",
      values: withValue(BATCHES.slice(0, 9), this.setup.accumulate),
      value: this.setup.accumulate,
      format: formatInteger,
      onInput: (value) => this.setBatch(this.setup.batch_size, value),
    });
    const controls = h(
      "section",
      { class: "card calc-controls", "aria-label": "Model and training" },
      h("div", { class: "group" }, h("h2", {}, "Model"), field("Start from", this.preset), this.wanted),
      this.sizes,
      h("label", { class: "check" }, this.tied, "embedding and head share their weights"),
      h("h2", {}, "Training"),
      h(
        "div",
        { class: "sliders" },
        slider({
          label: "Batch, sequences",
          values: withValue(BATCHES, this.setup.batch_size),
          value: this.setup.batch_size,
          format: formatInteger,
          onInput: (value) => this.setBatch(value, this.setup.accumulate),
        }),
        this.parts,
        slider({
          label: "Tokens of the run",
          values: withValue([0, ...TOKENS], this.setup.num_tokens),
          value: this.setup.num_tokens,
          format: (value) => (value ? formatCount(value) : "20 per parameter"),
          onInput: train("num_tokens"),
        }),
      ),
      h(
        "div",
        { class: "row" },
        field("Optimizer", select(this.choices.optimizers.map((name) => [name, name]), this.setup.optimizer, train("optimizer"))),
        field("Device", select(this.choices.devices, this.setup.device, train("device"))),
      ),
      h(
        "div",
        { class: "row" },
        h("span", { class: "quiet", "aria-hidden": "true" }, "Precision"),
        choice("Precision", [["bf16", "bf16"], ["fp32", "fp32"]], this.setup.precision, train("precision")),
      ),
    );
    this.figures = h("dl", { class: "figures" });
    this.bars = h("div", { class: "cost-bars" });
    this.recipe = h("pre", { tabindex: 0 });
    this.problem = h("div", { role: "alert", class: "calc-problem" });
    const answer = h(
      "div",
      { class: "content" },
      h("section", { class: "card calc-answer", "aria-label": "Costs", "aria-live": "polite" }, this.figures, this.problem),
      h("section", { class: "card", "aria-label": "Where they go" }, this.bars),
      h("details", { class: "card" }, h("summary", {}, "Table for a recipe"), this.recipe),
    );
    element.append(
      h("header", {}, h("h1", {}, "Calculator"), h("p", {}, "What a model costs before it is trained, predicted by formula.")),
      h("div", { class: "sides wide" }, controls, answer),
    );
  }

  start() {
    return this.fetch();
  }

  findPreset() {
    const found = Object.entries(this.choices.presets).find(
      ([, shape]) => Object.keys(shape).every((key) => shape[key] === this.shape[key]),
    );
    return found ? found[0] : "";
  }

  change(values) {
    const before = this.shape.d_model;
    Object.assign(this.shape, values);
    if (this.shape.d_model !== before) {
      // Keep the ratio of the feed-forward width to the model width, and the size of a head.
      const head = before / this.shape.num_heads;
      this.shape.d_ff = Math.max(64, 64 * Math.round((this.shape.d_ff * this.shape.d_model) / before / 64));
      const fitting = divisors(this.shape.d_model);
      const distance = (heads) => Math.abs(this.shape.d_model / heads - head);
      this.shape.num_heads = fitting.reduce((best, each) => (distance(each) < distance(best) ? each : best));
      this.shape.num_kv_heads = this.shape.num_heads;
      this.redraw("Width (d_model)");
    }
    this.preset.value = this.findPreset();
    this.save();
  }

  /** Set the batch and the number of its parts, which is at most the number of sequences. */
  setBatch(batchSize, numParts) {
    this.setup.batch_size = batchSize;
    this.setup.accumulate = Math.min(numParts, batchSize);
    this.parts.set(this.setup.accumulate);
    this.save();
  }

  setShape(shape) {
    Object.assign(this.shape, shape);
    this.tied.checked = this.shape.tie_embeddings;
    this.redraw();
    this.preset.value = this.findPreset();
    this.save();
  }

  /** Make the sliders of the shape again, and give the focus back to the one that had it. */
  redraw(label = "") {
    this.makeSizes();
    if (!label) return;
    const again = [...this.sizes.querySelectorAll("label")].find((each) => each.textContent === label);
    document.getElementById(again?.getAttribute("for"))?.focus();
  }

  save() {
    const state = { ...this.setup, ...this.shape };
    this.context.setParams(Object.fromEntries(Object.entries(state).map(([key, value]) => [key, String(value)])));
    this.predict();
  }

  async fetchProposal(parameters) {
    const signal = this.newSignal();
    try {
      this.setShape(await postJson(
        "/api/calculator/propose",
        { parameters, context_length: this.shape.context_length },
        { signal },
      ));
    } catch (error) {
      showError(this.problem, error);
    }
  }

  /** Abort the last request, and return the signal of the next one. */
  newSignal() {
    this.request?.abort();
    this.request = new AbortController();
    return AbortSignal.any([this.request.signal, this.context.signal]);
  }

  async fetch() {
    const signal = this.newSignal();
    try {
      this.draw(await postJson("/api/calculator/predict", { model: this.shape, ...this.setup }, { signal }));
      this.problem.replaceChildren();
    } catch (error) {
      if (!isAbort(error)) showError(this.problem, error);
    }
  }

  draw(answer) {
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
    this.bars.replaceChildren(
      drawBar("Parameters", Object.entries(answer.parameters), formatCount),
      drawBar("Compute per token, forward pass", Object.entries(answer.flops_per_token), formatFlops),
      drawBar(`Peak memory, ${MOMENTS[answer.memory_moment] ?? answer.memory_moment}`, Object.entries(answer.memory), formatBytes),
    );
    this.recipe.textContent = answer.recipe;
    if (document.activeElement !== this.wanted.input) this.wanted.set(costs.parameters);
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

/** Return the numbers of heads that divide a width into heads of an even size of at least 8. */
function divisors(width) {
  const found = [];
  for (let heads = 1; heads <= Math.min(width, 256); heads += 1) {
    const size = width / heads;
    if (size % 2 === 0 && size >= 8) found.push(heads);
  }
  return found;
}

/** Return sorted positions of a slider that include a value. */
function withValue(values, value) {
  return values.includes(value) ? values : [...values, value].sort((a, b) => a - b);
}

function niceNumber(value) {
  return Number(value.toPrecision(2));
}
