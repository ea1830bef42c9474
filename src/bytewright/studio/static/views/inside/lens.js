/** The logit lens of the view Inside: a table of the likeliest tokens after each token, by layer. */
import { h } from "../../lib/dom.js";
import { formatProbability, quoted, tokenLabel } from "../../lib/format.js";
import { clampIndex, GRID_STEPS } from "../../lib/keys.js";

export class Lens {
  /** `onSelect(index)` is called when the user selects a token; the index can be out of range. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.note = h("p", { class: "inside-note" });
    this.table = h("table", { class: "lens", role: "grid" });
    this.table.addEventListener("click", (event) => this.handleClick(event));
    this.table.addEventListener("keydown", (event) => this.handleKey(event));
    // A browser does not scroll to a cell in focus of which a part is visible.
    this.table.addEventListener("focusin", (event) => event.target.scrollIntoView({ block: "nearest", inline: "nearest" }));
  }

  handleClick(event) {
    const cell = event.target.closest("td");
    if (!cell) return;
    this.column = Number(cell.dataset.column);
    this.onSelect(Number(cell.dataset.index));
    cell.focus({ preventScroll: true });
  }

  handleKey(event) {
    if (!(event.key in GRID_STEPS)) return;
    event.preventDefault();
    const [down, right] = GRID_STEPS[event.key];
    this.column = clampIndex(this.column + right, this.reading.answer.lens.length - 1);
    this.onSelect(this.index + down);
    this.cell()?.focus();
  }

  /** Draw the table, and select the last layer. */
  draw(reading) {
    const { lens } = reading.answer;
    this.reading = reading;
    this.column = lens.length - 1;
    const names = lens.map((_, column) => this.nameOf(column));
    this.table.style.setProperty("--columns", lens.length + 1);
    this.table.replaceChildren(
      h("thead", {}, h("tr", {}, h("th", {}, "token"), names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, reading.ids.map((_, index) => this.drawRow(index))),
    );
  }

  drawRow(index) {
    const { answer } = this.reading;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("small", { class: "quiet" }, `${index + 1} `), tokenLabel(this.reading.token(index))),
      answer.lens.map((state, column) => h(
        "td",
        {
          tabindex: -1,
          dataset: { index, column },
          style: { "--heat": state.p[index][0].toFixed(3) },
          title: formatProbability(state.p[index][0]),
        },
        tokenLabel(answer.tokens[state.ids[index][0]]),
      )),
    );
  }

  nameOf(column) {
    return column ? `layer ${column - 1}` : "embeddings";
  }

  /** Return the selected cell. */
  cell() {
    return this.table.querySelector(`td[data-index="${this.index}"][data-column="${this.column}"]`);
  }

  /** Select a token in the selected layer. */
  select(index) {
    const { reading, column } = this;
    this.index = index;
    const old = this.table.querySelector("[aria-selected=true]");
    old?.setAttribute("aria-selected", "false");
    old?.setAttribute("tabindex", "-1");
    this.cell()?.setAttribute("aria-selected", "true");
    this.cell()?.setAttribute("tabindex", "0");
    const state = reading.answer.lens[column];
    const list = state.ids[index].map(
      (id, rank) => `${quoted(reading.answer.tokens[id])} ${formatProbability(state.p[index][rank])}`,
    );
    const actual = index + 1 < reading.ids.length ? ` The text continues with ${reading.label(index + 1)}.` : "";
    this.note.textContent = `After ${reading.label(index)} (token ${index + 1}), ${this.nameOf(column)}: ${list.join(", ")}.${actual}`;
  }
}
