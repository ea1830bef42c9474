/** The view Calculator: sliders for a model and its training; the server predicts the costs. */
import { getJson, postJson, showError } from "../lib/api.js";
import { choice, debounce, field, h, select, slider } from "../lib/dom.js";
import { formatCount, formatInteger, isNumber } from "../lib/format.js";
import { Costs } from "./calculator/costs.js";

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

const GPT2_HINT = "The gpt2 presets have the sizes of GPT-2 with a SwiGLU and an untied head, so more parameters.";

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
    this.predict = debounce(() => this.fetchCosts(), 60, context.signal);
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
    this.propose = debounce((value) => this.fetchProposal(value), 150, this.context.signal);
    this.costs = new Costs();
    this.problem = h("div", { role: "alert", class: "calc-problem" });
    const controls = h(
      "section",
      { class: "card calc-controls", "aria-label": "Model and training" },
      this.buildModel(),
      this.buildTraining(),
    );
    const answer = h(
      "div",
      { class: "content" },
      h(
        "section",
        { class: "card calc-answer", "aria-label": "Costs", "aria-live": "polite" },
        this.costs.figures,
        this.problem,
      ),
      h("section", { class: "card", "aria-label": "Where they go" }, this.costs.bars),
      h("details", { class: "card" }, h("summary", {}, "Table for a recipe"), this.costs.recipe),
    );
    element.append(
      h("header", {}, h("h1", {}, "Calculator"), h("p", {}, "What a model costs before it is trained, predicted by formula.")),
      h("div", { class: "sides wide" }, controls, answer),
    );
  }

  buildModel() {
    this.preset = select(
      [["", "own shape"], ...Object.keys(this.choices.presets).map((name) => [name, name])],
      this.findPreset(),
      (name) => {
        if (name) this.setShape(this.choices.presets[name]);
      },
    );
    this.wanted = slider({
      label: "Propose a shape by its parameters",
      values: SIZES,
      value: 1.2e8,
      format: formatCount,
      onInput: (value) => this.propose(value),
    });
    this.sizes = h("div", { class: "sliders" });
    this.makeSizes();
    this.tied = h("input", { type: "checkbox" });
    this.tied.checked = this.shape.tie_embeddings;
    this.tied.addEventListener("change", () => this.change({ tie_embeddings: this.tied.checked }));
    return [
      h("div", { class: "group" }, h("h2", {}, "Model"), field("Start from", this.preset, GPT2_HINT), this.wanted),
      this.sizes,
      h("label", { class: "check" }, this.tied, "embedding and head share their weights"),
    ];
  }

  /** Make the sliders of the shape; their positions depend on it. */
  makeSizes() {
    const { shape } = this;
    const size = (name, label, values) => slider({
      label,
      values: withValue(values, shape[name]),
      value: shape[name],
      format: formatInteger,
      onInput: (value) => this.change({ [name]: value }),
    });
    this.sizes.replaceChildren(
      size("num_layers", "Layers", LAYERS),
      size("d_model", "Width (d_model)", WIDTHS),
      slider({
        label: "Heads × size of a head",
        values: divisors(shape.d_model),
        value: shape.num_heads,
        format: (value) => `${formatInteger(value)} × ${formatInteger(shape.d_model / value)}`,
        onInput: (value) => this.change({ num_heads: value, num_kv_heads: value }),
      }),
      slider({
        label: "Feed-forward width (d_ff)",
        min: 64,
        max: Math.max(64 * Math.ceil(shape.d_model / 8), shape.d_ff),
        step: shape.d_ff % 64 ? 1 : 64,
        value: shape.d_ff,
        format: formatInteger,
        onInput: (value) => this.change({ d_ff: value }),
      }),
      size("context_length", "Context, tokens", CONTEXTS),
      size("vocab_size", "Vocabulary", VOCABULARIES),
    );
  }

  buildTraining() {
    const { setup, choices } = this;
    const set = (key) => (value) => {
      setup[key] = value;
      this.save();
    };
    return [
      h("h2", {}, "Training"),
      h("div", { class: "sliders" }, this.makeTrainingSliders(set)),
      h(
        "div",
        { class: "row" },
        field("Optimizer", select(choices.optimizers.map((name) => [name, name]), setup.optimizer, set("optimizer"))),
        field("Device", select(choices.devices, setup.device, set("device"))),
      ),
      h(
        "div",
        { class: "row" },
        h("span", { class: "quiet", "aria-hidden": "true" }, "Precision"),
        choice("Precision", [["bf16", "bf16"], ["fp32", "fp32"]], setup.precision, set("precision")),
      ),
    ];
  }

  makeTrainingSliders(set) {
    const { setup } = this;
    this.accumulate = slider({
      label: "Accumulation steps",
      values: withValue(BATCHES.slice(0, 9), setup.accumulate),
      value: setup.accumulate,
      format: formatInteger,
      onInput: (value) => this.setBatch(setup.batch_size, value),
    });
    return [
      slider({
        label: "Batch, sequences",
        values: withValue(BATCHES, setup.batch_size),
        value: setup.batch_size,
        format: formatInteger,
        onInput: (value) => this.setBatch(value, setup.accumulate),
      }),
      this.accumulate,
      slider({
        label: "Tokens of the run",
        values: withValue([0, ...TOKENS], setup.num_tokens),
        value: setup.num_tokens,
        format: (value) => (value ? formatCount(value) : "20 per parameter"),
        onInput: set("num_tokens"),
      }),
    ];
  }

  start() {
    return this.fetchCosts();
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

  /** Set the batch and the accumulation steps, which are at most the number of sequences. */
  setBatch(batchSize, accumulate) {
    this.setup.batch_size = batchSize;
    this.setup.accumulate = Math.min(accumulate, batchSize);
    this.accumulate.set(this.setup.accumulate);
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

  async fetchCosts() {
    const signal = this.newSignal();
    try {
      this.draw(await postJson("/api/calculator/predict", { model: this.shape, ...this.setup }, { signal }));
      this.problem.replaceChildren();
    } catch (error) {
      showError(this.problem, error);
    }
  }

  draw(answer) {
    this.costs.draw(answer);
    if (document.activeElement !== this.wanted.input) this.wanted.set(answer.costs.parameters);
  }
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
