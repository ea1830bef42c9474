/** The attention of the view Inside: small maps of all heads, and a large one of the selected head. */
import { h } from "../../lib/dom.js";
import { clampIndex, GRID_STEPS } from "../../lib/keys.js";

const LABEL_HEIGHT = 13; // pixels

/** Draw the weights of a head, one pixel per pair of tokens; the style enlarges the pixels. */
function drawHead(canvas, reading, head, [red, green, blue]) {
  const count = reading.ids.length;
  canvas.width = count;
  canvas.height = count;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(count, count);
  for (let from = 0; from < count; from += 1) {
    for (let to = 0; to <= from; to += 1) {
      image.data.set([red, green, blue, 255 * Math.sqrt(reading.weight(head, from, to))], 4 * (from * count + to));
    }
  }
  pen.putImageData(image, 0, 0);
}

/** Return the colour of the weights, which depends on the theme. */
function readInk(element) {
  const probe = h("i", { class: "map-ink" });
  element.append(probe);
  const colour = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return colour;
}

export class HeadGrid {
  /** `onSelect(head)` is called when the user selects a head, which is {layer, index}. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.element = h("div", { class: "heads" });
    this.element.addEventListener("keydown", (event) => this.handleKey(event));
  }

  handleKey(event) {
    if (!(event.key in GRID_STEPS) || !event.target.dataset.layer) return;
    event.preventDefault();
    const [down, right] = GRID_STEPS[event.key];
    const [row, column] = [Number(event.target.dataset.layer) + down, Number(event.target.dataset.head) + right];
    this.element.querySelector(`[data-layer="${row}"][data-head="${column}"]`)?.focus();
  }

  draw(reading) {
    const { num_layers: numLayers, num_heads: numHeads } = reading.answer;
    if (!reading.weights) {
      this.element.replaceChildren(h("p", { class: "quiet" }, "The attention of this model has no weights to show."));
      return;
    }
    const ink = readInk(this.element);
    const numbers = [...Array(numHeads).keys()];
    this.element.style.setProperty("--heads", numHeads);
    this.element.replaceChildren(
      h("span", {}),
      ...numbers.map((index) => h("small", { class: "quiet" }, `head ${index}`)),
      ...[...Array(numLayers).keys()].flatMap((layer) => [
        h("small", { class: "quiet layer-name" }, `layer ${layer}`),
        ...numbers.map((index) => this.drawButton(reading, { layer, index }, ink)),
      ]),
    );
  }

  drawButton(reading, head, ink) {
    const canvas = h("canvas", { "aria-hidden": "true" });
    drawHead(canvas, reading, head, ink);
    return h(
      "button",
      {
        type: "button",
        class: "head",
        dataset: { layer: head.layer, head: head.index },
        "aria-label": `Layer ${head.layer}, head ${head.index}`,
        onclick: () => this.onSelect(head),
      },
      canvas,
    );
  }

  /** Mark the selected head. */
  mark({ layer, index }) {
    for (const button of this.element.querySelectorAll(".head")) {
      const isSelected = Number(button.dataset.layer) === layer && Number(button.dataset.head) === index;
      button.setAttribute("aria-pressed", String(isSelected));
    }
  }
}

export class HeadMap {
  /** `onSelect(from, to)` is called when the user selects a pair of tokens; `from` can be out of range. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.title = h("h2", {});
    this.readout = h("p", { class: "inside-note", role: "status" });
    this.map = h("div", { class: "map", tabindex: 0, role: "img" });
    this.map.addEventListener("click", (event) => this.handleClick(event));
    this.map.addEventListener("keydown", (event) => this.handleKey(event));
    this.clear();
  }

  clear() {
    this.reading = null;
    this.title.textContent = "One head";
    this.readout.textContent = "";
    this.map.replaceChildren();
  }

  handleClick(event) {
    const area = this.map.querySelector(".map-area")?.getBoundingClientRect();
    if (!area) return;
    const count = this.reading.ids.length;
    const row = Math.floor(((event.clientY - area.top) / area.height) * count);
    const column = Math.floor(((event.clientX - area.left) / area.width) * count);
    if (row >= 0 && column >= 0 && row < count && column < count) this.onSelect(row, column);
  }

  handleKey(event) {
    if (!this.reading || !(event.key in GRID_STEPS)) return;
    event.preventDefault();
    const [down, right] = GRID_STEPS[event.key];
    const last = this.reading.ids.length - 1;
    const to = right ? clampIndex((this.to ?? this.from) + right, last) : this.to;
    this.onSelect(this.from + down, to);
  }

  /** Show a head, with token `from` selected, and `to` if it is not null. */
  draw(reading, head, from, to) {
    Object.assign(this, { reading, from, to });
    this.title.textContent = `Layer ${head.layer}, head ${head.index}`;
    this.map.setAttribute("aria-label", `Attention weights of layer ${head.layer}, head ${head.index}. Arrow keys move between tokens.`);
    const canvas = h("canvas", {});
    drawHead(canvas, reading, head, readInk(this.map));
    this.map.replaceChildren(
      h("span", { class: "map-axis map-from quiet" }, "token"),
      h("span", { class: "map-axis map-to quiet" }, "attends to"),
      h("div", { class: "map-area" }, canvas, ...this.drawLabels(), ...this.drawCursors()),
    );
    this.readout.textContent = this.describe(head);
  }

  /** Return the labels of the tokens, as many as fit. */
  drawLabels() {
    const count = this.reading.ids.length;
    const size = Math.max(LABEL_HEIGHT, Math.min(608, this.map.clientWidth - 80));
    const step = Math.ceil((count * LABEL_HEIGHT) / size);
    const labels = [];
    for (let index = 0; index < count; index += step) {
      const position = `${(100 * (index + 0.5)) / count}%`;
      labels.push(
        h("span", { class: "map-row", style: { top: position } }, this.reading.shortLabel(index)),
        h("span", { class: "map-column", style: { left: position } }, this.reading.shortLabel(index)),
      );
    }
    return labels;
  }

  /** Return the marks of the selected row and column. */
  drawCursors() {
    const share = (index) => `${(100 * index) / this.reading.ids.length}%`;
    const row = { top: share(this.from), height: share(1), left: "0", width: "100%" };
    const column = { left: share(this.to ?? this.from), width: share(1), top: "0", height: "100%" };
    return [
      h("i", { class: "map-cursor", style: row }),
      h("i", { class: "map-cursor", style: column, hidden: this.to === null }),
    ];
  }

  /** Return a sentence about the weights of the selected token. */
  describe(head) {
    const { reading, from, to } = this;
    const name = `Token ${from + 1} ${reading.label(from)}`;
    if (to !== null) {
      const weight = to > from ? "0 (later token)" : reading.weight(head, from, to).toFixed(3);
      return `${name} to token ${to + 1} ${reading.label(to)}: weight ${weight}.`;
    }
    const weightOf = (index) => reading.weight(head, from, index);
    const earlier = [...Array(from + 1).keys()];
    const strongest = earlier.sort((a, b) => weightOf(b) - weightOf(a)).slice(0, 3);
    return `${name} attends to ${strongest.map((index) => `${reading.label(index)} ${weightOf(index).toFixed(2)}`).join(", ")}.`;
  }
}
