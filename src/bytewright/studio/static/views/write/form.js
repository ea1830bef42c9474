/** The form of the view Write: the run, the beginning of the text, and the settings of the sampling. */
import { field, h, select, slider } from "../../lib/dom.js";

const TOP_K = [0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500];
const LENGTHS = [10, 20, 50, 100, 200, 300, 400, 500];
const MAX_SEED = 4294967295;

export class WriteForm {
  /** `actions` has functions for the buttons: write, score, extend and stop; and clear, called when texts are obsolete. */
  constructor(context, picker, actions) {
    this.context = context;
    this.picker = picker;
    this.actions = actions;
    this.prompt = h("textarea", { rows: 3, spellcheck: "false" });
    this.prompt.value = context.params.get("prompt") ?? "Once upon a time,";
    this.seed = h("input", { type: "number", min: 0, step: 1, max: MAX_SEED });
    this.seed.value = this.number("seed", 1);
    this.seed.addEventListener("change", () => context.setParams({ seed: this.seed.value }));
    this.compare = select(
      [["auto", "for runs on the storybook"], ["yes", "always"], ["no", "never"]],
      context.params.get("grammar") ?? "auto",
      (value) => {
        context.setParams({ grammar: value === "auto" ? null : value });
        actions.clear();
      },
    );
    this.makeSliders();
    this.extendButton = h("button", { type: "button", disabled: true, onclick: actions.extend }, "Continue");
    this.stopButton = h("button", { type: "button", disabled: true, onclick: actions.stop }, "Stop");
    this.element = this.build();
  }

  makeSliders() {
    const make = (key, options) => slider({ onInput: (value) => this.context.setParams({ [key]: value }), ...options });
    this.temperature = make("temperature", {
      label: "Temperature",
      value: this.number("temperature", 1),
      min: 0,
      max: 2,
      step: 0.05,
      format: (value) => (value ? value.toFixed(2) : "0: likeliest"),
    });
    this.topP = make("top_p", {
      label: "Top-p",
      value: this.number("top_p", 1),
      min: 0.05,
      max: 1,
      step: 0.05,
      format: (value) => (value < 1 ? value.toFixed(2) : "off"),
    });
    this.topK = make("top_k", {
      label: "Top-k",
      value: this.number("top_k", 0),
      values: TOP_K,
      format: (value) => (value ? String(value) : "off"),
    });
    this.length = make("length", { label: "New tokens", value: this.number("length", 200), values: LENGTHS });
  }

  build() {
    const { write, score } = this.actions;
    const submit = (event) => {
      event.preventDefault();
      write();
    };
    return h(
      "form",
      { class: "card write-form", onsubmit: submit },
      this.picker.element,
      field("Beginning of the text", this.prompt),
      this.temperature,
      this.topP,
      this.topK,
      this.length,
      field("Seed", this.seed, "The same seed and settings give the same text."),
      field("True probabilities", this.compare),
      h(
        "div",
        { class: "write-buttons" },
        h("button", { type: "submit", class: "primary" }, "Write"),
        this.stopButton,
        this.extendButton,
        h("button", { type: "button", onclick: score }, "Score only"),
      ),
    );
  }

  /** Return a number of the address, or `value` if it has none. */
  number(name, value) {
    const { params } = this.context;
    return params.has(name) && Number.isFinite(Number(params.get(name))) ? Number(params.get(name)) : value;
  }

  /** Return the settings of a request. */
  settings() {
    return {
      run: this.picker.run(),
      temperature: this.temperature.get(),
      top_p: this.topP.get(),
      top_k: this.topK.get(),
      seed: Math.max(0, Math.floor(Number(this.seed.value) || 0)),
      grammar: { auto: null, yes: true, no: false }[this.compare.value],
    };
  }

  showState({ isBusy, canExtend }) {
    this.stopButton.disabled = !isBusy;
    this.extendButton.disabled = isBusy || !canExtend;
  }
}
