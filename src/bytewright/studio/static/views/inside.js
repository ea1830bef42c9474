/**
 * The view Inside: attention of every head, norms of the residual stream, and the logit lens, for a text.
 * One token and one head are selected; all parts of the view, which are in the folder `inside`, show them.
 */
import { isAbort, postJson } from "../lib/api.js";
import { lineChart } from "../lib/chart.js";
import { field, h } from "../lib/dom.js";
import { formatFigure, formatQuantity } from "../lib/format.js";
import { clampIndex } from "../lib/keys.js";
import { noModels, pickModel } from "../lib/model_picker.js";
import { HeadGrid, HeadMap } from "./inside/attention.js";
import { Lens } from "./inside/lens.js";
import { Reading } from "./inside/reading.js";
import { AttendedText } from "./inside/text.js";

const EXAMPLE = "Once upon a time, a brave mouse named Tom lived in the quiet woods of Foxwood. Tom loved his red kite.";

export async function mount(element, context) {
  const view = new InsideView(element, context);
  await view.start();
}

class InsideView {
  constructor(element, context) {
    this.element = element;
    this.context = context;
    this.reading = null;
    this.head = { layer: Number(context.params.get("layer")) || 0, index: Number(context.params.get("head")) || 0 };
    this.index = 0; // of the selected token
    this.attended = null; // the index of the selected token among those that it attends to
    this.job = null; // the AbortController of the request in progress
  }

  async start() {
    this.picker = await pickModel(this.context, () => this.compute());
    const heading = h(
      "header",
      {},
      h("h1", {}, "Inside"),
      h("p", {}, "Attention, residual stream and predictions of every layer, for a text."),
    );
    if (this.picker.empty) {
      this.element.append(heading, noModels(this.context));
      return;
    }
    this.element.append(heading, this.buildForm(), this.buildResults());
    const { signal } = this.context;
    document.addEventListener("themechange", () => this.redraw(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw(), { signal });
    await this.compute();
  }

  buildForm() {
    this.input = h("textarea", { rows: 3, spellcheck: "false" });
    this.input.value = this.context.params.get("text") ?? EXAMPLE;
    this.status = h("p", { class: "quiet inside-status", role: "status" }, "");
    const submit = (event) => {
      event.preventDefault();
      this.compute();
    };
    return h(
      "form",
      { class: "card inside-form", onsubmit: submit },
      h("div", {}, this.picker.element),
      field("Text", this.input),
      h("div", { class: "row" }, h("button", { class: "primary" }, "Look inside"), this.status),
    );
  }

  buildResults() {
    const normsBox = h("div", {});
    this.norms = lineChart(normsBox, { height: 260, signal: this.context.signal });
    this.text = new AttendedText((index) => this.selectToken(index));
    this.grid = new HeadGrid((head) => this.selectHead(head));
    this.map = new HeadMap((from, to) => {
      this.attended = to;
      this.selectToken(from);
    });
    this.lens = new Lens((index) => this.selectToken(index));
    const card = (...parts) => h("section", { class: "card" }, ...parts);
    const quiet = (text) => h("p", { class: "quiet" }, text);
    const heads = card(
      h("h2", {}, "Attention of all heads"),
      quiet("Rows are tokens, columns the tokens they attend to. Stronger colour is more, on a square-root scale."),
      this.grid.element,
    );
    this.results = h(
      "div",
      { class: "view", hidden: true },
      card(h("h2", {}, "Text"), this.text.note, this.text.tokens),
      h(
        "div",
        { class: "inside-columns" },
        h("div", { class: "view" }, heads, card(normsBox)),
        card(this.map.title, this.map.readout, this.map.map),
      ),
      card(
        h("h2", {}, "Logit lens"),
        quiet("The likeliest next token after each token, if the model ended after a layer. Stronger colour is more probable."),
        this.lens.note,
        h("div", { class: "scroll lens-scroll", tabindex: -1 }, this.lens.table),
      ),
    );
    return this.results;
  }

  async compute() {
    this.job?.abort();
    const job = new AbortController();
    this.job = job;
    this.context.signal.addEventListener("abort", () => job.abort(), { signal: job.signal });
    const run = this.picker.run();
    const text = this.input.value;
    this.context.setParams({ run, text: text === EXAMPLE ? null : text });
    this.status.textContent = "Computing…";
    this.status.classList.remove("error");
    let answer;
    try {
      answer = await postJson("/api/inside/read", { run, text, top: 5 }, { signal: job.signal });
    } catch (error) {
      if (!isAbort(error)) this.fail(error);
      return;
    }
    this.show(new Reading(answer));
  }

  fail(error) {
    this.reading = null; // the hidden results are not redrawn
    this.results.hidden = true;
    this.status.textContent = error.message;
    this.status.classList.add("error");
  }

  show(reading) {
    const { answer, ids } = reading;
    const { layer, index } = this.head;
    this.reading = reading;
    this.head = { layer: clampIndex(layer, answer.num_layers - 1), index: clampIndex(index, answer.num_heads - 1) };
    this.attended = null;
    this.results.hidden = false;
    const shape = `${formatQuantity(answer.num_layers, "layer")} of ${formatQuantity(answer.num_heads, "head")}.`;
    this.status.textContent = ids.length < answer.num_tokens
      ? `The first ${ids.length} of ${answer.num_tokens} tokens are shown.`
      : `${formatQuantity(ids.length, "token")}, ${shape}`;
    if (answer.notice) this.status.textContent += ` ${answer.notice}`;
    this.text.draw(reading);
    this.grid.draw(reading);
    this.drawNorms();
    this.lens.draw(reading);
    this.selectToken(ids.length - 1);
  }

  drawNorms() {
    const { norms } = this.reading.answer;
    const last = norms.length - 1;
    this.norms.update({
      title: "Norm of the residual stream",
      x: { label: "token", format: (value) => String(value) },
      y: { label: "Euclidean norm", log: true, formatValue: (value) => formatFigure(value, 3) },
      series: norms.map((row, index) => ({
        name: index ? `after layer ${index - 1}` : "embeddings",
        colour: `color-mix(in oklab, var(--c1) ${last ? Math.round((100 * index) / last) : 100}%, var(--c0))`,
        points: row.map((value, token) => [token + 1, value]),
      })),
    });
  }

  selectToken(index) {
    this.index = clampIndex(index, this.reading.ids.length - 1);
    this.text.select(this.index);
    this.showHead();
    this.lens.select(this.index);
  }

  selectHead(head) {
    this.head = head;
    this.context.setParams({ layer: head.layer, head: head.index });
    this.showHead();
  }

  showHead() {
    this.text.colourAll(this.reading, this.head);
    if (!this.reading.weights) {
      this.map.clear();
      return;
    }
    this.grid.mark(this.head);
    this.map.draw(this.reading, this.head, this.index, this.attended);
  }

  /** Draw what depends on the theme. */
  redraw() {
    if (!this.reading) return;
    this.grid.draw(this.reading);
    this.showHead();
  }
}
