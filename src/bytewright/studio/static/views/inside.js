/**
 * The view Inside: attention of every head, norms of the residual stream, and the logit lens, for a text.
 * One token and one head are selected; all parts of the view show them.
 */
import { isAbort, postJson } from "../lib/api.js";
import { lineChart } from "../lib/chart.js";
import { field, h } from "../lib/dom.js";
import { formatFigure, formatQuantity, formatProbability, quoted, tokenLabel, tokenText } from "../lib/format.js";
import { noModels, pickModel } from "../lib/model_picker.js";

const EXAMPLE = "Once upon a time, a brave mouse named Tom lived in the quiet woods of Foxwood. Tom loved his red kite.";

export async function mount(element, context) {
  const { params, signal } = context;
  const picker = await pickModel(context, () => compute());
  const heading = h(
    "header",
    {},
    h("h1", {}, "Inside"),
    h("p", {}, "Attention, residual stream and predictions of every layer, for a text."),
  );
  if (picker.empty) {
    element.append(heading, noModels());
    return;
  }
  const text = h("textarea", { rows: 3, spellcheck: "false" });
  text.value = params.get("text") ?? EXAMPLE;
  const status = h("p", { class: "quiet inside-status", role: "status" }, "");
  const form = h(
    "form",
    { class: "card inside-form", onsubmit: (event) => (event.preventDefault(), compute()) },
    h("div", {}, picker.element),
    field("Text", text),
    h("div", { class: "row" }, h("button", { class: "primary" }, "Look inside"), status),
  );

  const tokens = h(
    "div",
    { class: "story inside-story", role: "listbox", "aria-label": "Tokens; colours are attention weights", tabindex: 0 },
  );
  const tokensNote = h("p", { class: "quiet inside-note" });
  const grid = h("div", { class: "heads" });
  const headTitle = h("h2", {}, "One head");
  const map = h("div", { class: "map", tabindex: 0, role: "img" });
  const readout = h("p", { class: "inside-note", role: "status" });
  const normsBox = h("div", {});
  const norms = lineChart(normsBox, { height: 260, signal });
  const lensTable = h("table", { class: "lens", role: "grid" });
  const lensNote = h("p", { class: "inside-note" });
  const results = h(
    "div",
    { class: "view", hidden: true },
    h("section", { class: "card" }, h("h2", {}, "Text"), tokensNote, tokens),
    h(
      "div",
      { class: "inside-columns" },
      h(
        "div",
        { class: "view" },
        h(
          "section",
          { class: "card" },
          h("h2", {}, "Attention of all heads"),
          h(
            "p",
            { class: "quiet" },
            "Rows are tokens, columns the tokens they attend to. Stronger colour is more, on a square-root scale.",
          ),
          grid,
        ),
        h("section", { class: "card" }, normsBox),
      ),
      h("section", { class: "card" }, headTitle, readout, map),
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Logit lens"),
      h(
        "p",
        { class: "quiet" },
        "The likeliest next token after each token, if the model ended after a layer. Stronger colour is more probable.",
      ),
      lensNote,
      h("div", { class: "scroll lens-scroll", tabindex: -1 }, lensTable),
    ),
  );
  element.append(heading, form, results);

  let data = null;
  let weights = null;
  let layer = Number(params.get("layer")) || 0;
  let head = Number(params.get("head")) || 0;
  let at = 0; // the selected token
  let key = null; // the token under the cursor of the map
  let lensColumn = 0;
  let job = null;

  const tokenAt = (index) => data.tokens[data.ids[index]];
  const label = (index) => quoted(tokenAt(index));
  const shortLabel = (index) => tokenLabel({ ...tokenAt(index), text: tokenAt(index).text.trim() || tokenAt(index).text });

  async function compute() {
    job?.abort();
    job = new AbortController();
    const mine = job;
    signal.addEventListener("abort", () => mine.abort(), { signal: mine.signal });
    context.setParams({ run: picker.run(), text: text.value === EXAMPLE ? null : text.value });
    status.textContent = "Computing…";
    status.classList.remove("error");
    try {
      data = await postJson("/api/inside/read", { run: picker.run(), text: text.value, top: 5 }, { signal: mine.signal });
    } catch (error) {
      if (isAbort(error)) return;
      results.hidden = true;
      status.textContent = error.message;
      status.classList.add("error");
      return;
    }
    results.hidden = false;
    weights = data.attention ? Uint8Array.from(atob(data.attention), (character) => character.charCodeAt(0)) : null;
    layer = Math.min(layer, data.num_layers - 1);
    head = Math.min(head, data.num_heads - 1);
    at = data.ids.length - 1;
    key = null;
    lensColumn = data.num_layers;
    const shown = data.ids.length;
    status.textContent = [
      formatQuantity(shown, "token"),
      `${formatQuantity(data.num_layers, "layer")} of ${formatQuantity(data.num_heads, "head")}.`,
    ].join(", ");
    if (shown < data.num_tokens) status.textContent = `The first ${shown} of ${data.num_tokens} tokens are shown.`;
    if (data.notice) status.textContent += ` ${data.notice}`;
    showTokens();
    showGrid();
    showNorms();
    showLens();
    selectToken(at);
  }

  /** Return the weight of token `to` for token `from` in a head, from 0 to 1. */
  function weightOf(layer, head, from, to) {
    if (!weights || to > from) return 0;
    const size = (data.ids.length * (data.ids.length + 1)) / 2;
    return weights[(layer * data.num_heads + head) * size + (from * (from + 1)) / 2 + to] / 255;
  }

  // The text, coloured by the attention of the selected token

  function showTokens() {
    tokens.replaceChildren(
      ...data.ids.map((id, index) => h(
        "span",
        { class: "piece", role: "option", id: `inside-${index}`, dataset: { index } },
        tokenText(data.tokens[id]),
      )),
    );
  }

  function selectToken(index) {
    at = Math.min(data.ids.length - 1, Math.max(0, index));
    tokens.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    tokens.children[at].setAttribute("aria-selected", "true");
    tokens.children[at].scrollIntoView({ block: "nearest" });
    tokens.setAttribute("aria-activedescendant", `inside-${at}`);
    showHead();
    showLensCell();
  }

  tokens.addEventListener("click", (event) => {
    const place = event.target.closest(".piece");
    if (place) selectToken(Number(place.dataset.index));
  });
  tokens.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity };
    if (!data || !(event.key in moves)) return;
    event.preventDefault();
    selectToken(at + moves[event.key]);
  });

  // Attention

  function inkColour() {
    const probe = h("i", { class: "map-ink" });
    element.append(probe);
    const colour = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return colour;
  }

  /** Draw the weights of a head, one pixel per pair of tokens; the style enlarges the pixels. */
  function drawHead(canvas, layer, head) {
    const count = data.ids.length;
    canvas.width = count;
    canvas.height = count;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(count, count);
    const [red, green, blue] = inkColour();
    for (let from = 0; from < count; from += 1) {
      for (let to = 0; to <= from; to += 1) {
        image.data.set([red, green, blue, 255 * Math.sqrt(weightOf(layer, head, from, to))], 4 * (from * count + to));
      }
    }
    pen.putImageData(image, 0, 0);
  }

  function showGrid() {
    if (!weights) {
      grid.replaceChildren(h("p", { class: "quiet" }, "The attention of this model has no weights to show."));
      return;
    }
    grid.style.setProperty("--heads", data.num_heads);
    const cells = [
      h("span", {}),
      ...Array.from({ length: data.num_heads }, (_, head) => h("small", { class: "quiet" }, `head ${head}`)),
    ];
    for (let row = 0; row < data.num_layers; row += 1) {
      cells.push(h("small", { class: "quiet layer-name" }, `layer ${row}`));
      for (let column = 0; column < data.num_heads; column += 1) {
        const canvas = h("canvas", { "aria-hidden": "true" });
        drawHead(canvas, row, column);
        cells.push(h(
          "button",
          {
            type: "button",
            class: "head",
            dataset: { layer: row, head: column },
            "aria-label": `Layer ${row}, head ${column}`,
            onclick: () => selectHead(row, column),
          },
          canvas,
        ));
      }
    }
    grid.replaceChildren(...cells);
  }

  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves) || !event.target.dataset.layer) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const [row, column] = [Number(event.target.dataset.layer) + down, Number(event.target.dataset.head) + right];
    grid.querySelector(`[data-layer="${row}"][data-head="${column}"]`)?.focus();
  });

  function selectHead(row, column) {
    [layer, head] = [row, column];
    context.setParams({ layer, head });
    showHead();
  }

  function showHead() {
    if (!weights) {
      map.replaceChildren();
      tokensNote.textContent = `Selected: token ${at + 1} ${label(at)}.`;
      return;
    }
    for (const button of grid.querySelectorAll(".head")) {
      const isSelected = Number(button.dataset.layer) === layer && Number(button.dataset.head) === head;
      button.setAttribute("aria-pressed", String(isSelected));
    }
    headTitle.textContent = `Layer ${layer}, head ${head}`;
    map.setAttribute("aria-label", `Attention weights of layer ${layer}, head ${head}. Arrow keys move between tokens.`);
    const canvas = h("canvas", {});
    drawHead(canvas, layer, head);
    const count = data.ids.length;
    const step = Math.ceil((count * 13) / Math.min(608, map.clientWidth - 80)); // 13 pixels for a label
    const labels = [];
    for (let index = 0; index < count; index += step) {
      const place = `${(100 * (index + 0.5)) / count}%`;
      labels.push(
        h("span", { class: "map-row", style: { top: place } }, shortLabel(index)),
        h("span", { class: "map-column", style: { left: place } }, shortLabel(index)),
      );
    }
    const row = h(
      "i",
      { class: "map-cursor", style: { top: `${(100 * at) / count}%`, height: `${100 / count}%`, left: "0", width: "100%" } },
    );
    const column = h(
      "i",
      {
        class: "map-cursor",
        style: { left: `${(100 * (key ?? at)) / count}%`, width: `${100 / count}%`, top: "0", height: "100%" },
      },
    );
    if (key === null) column.hidden = true;
    map.replaceChildren(
      h("span", { class: "map-axis map-from quiet" }, "token"),
      h("span", { class: "map-axis map-to quiet" }, "attends to"),
      h("div", { class: "map-area" }, canvas, ...labels, row, column),
    );
    for (const place of tokens.children) {
      const index = Number(place.dataset.index);
      place.style.setProperty("--heat", Math.sqrt(weightOf(layer, head, at, index)).toFixed(3));
      place.title = index <= at ? `weight ${weightOf(layer, head, at, index).toFixed(3)}` : "";
    }
    tokensNote.textContent = `Colours: the weights of each token for token ${at + 1} ${label(at)} in layer ${layer}, head ${head}.`;
    const weightFrom = (index) => weightOf(layer, head, at, index);
    if (key === null) {
      const earlier = Array.from({ length: at + 1 }, (_, index) => index);
      const strongest = earlier.sort((a, b) => weightFrom(b) - weightFrom(a)).slice(0, 3);
      const list = strongest.map((index) => `${label(index)} ${weightFrom(index).toFixed(2)}`).join(", ");
      readout.textContent = `Token ${at + 1} ${label(at)} attends to ${list}.`;
    } else {
      const weight = key > at ? "0 (later token)" : weightFrom(key).toFixed(3);
      readout.textContent = `Token ${at + 1} ${label(at)} to token ${key + 1} ${label(key)}: weight ${weight}.`;
    }
  }

  map.addEventListener("click", (event) => {
    const area = map.querySelector(".map-area")?.getBoundingClientRect();
    if (!area) return;
    const place = (offset, size) => Math.floor((offset / size) * data.ids.length);
    const [row, column] = [place(event.clientY - area.top, area.height), place(event.clientX - area.left, area.width)];
    if (row < 0 || column < 0 || row >= data.ids.length || column >= data.ids.length) return;
    key = column;
    selectToken(row);
  });
  map.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!weights || !(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    if (right) key = Math.min(data.ids.length - 1, Math.max(0, (key ?? at) + right));
    selectToken(at + down);
  });

  // Residual norms

  function showNorms() {
    const last = data.norms.length - 1;
    norms.update({
      title: "Norm of the residual stream",
      x: { label: "token", format: (value) => String(value) },
      y: { label: "Euclidean norm", log: true, formatValue: (value) => formatFigure(value, 3) },
      series: data.norms.map((row, index) => ({
        name: index ? `after layer ${index - 1}` : "embeddings",
        colour: `color-mix(in oklab, var(--c1) ${last ? Math.round((100 * index) / last) : 100}%, var(--c0))`,
        points: row.map((value, token) => [token + 1, value]),
      })),
      references: [],
    });
  }

  // Logit lens

  function showLens() {
    const names = data.lens.map((_, index) => (index ? `layer ${index - 1}` : "embeddings"));
    const rows = data.ids.map((_, index) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("small", { class: "quiet" }, `${index + 1} `), tokenLabel(tokenAt(index))),
        data.lens.map((state, column) => h(
          "td",
          {
            tabindex: -1,
            dataset: { index, column },
            style: { "--heat": state.p[index][0].toFixed(3) },
            title: formatProbability(state.p[index][0]),
          },
          tokenLabel(data.tokens[state.ids[index][0]]),
        )),
      ),
    );
    lensTable.style.setProperty("--columns", data.lens.length + 1);
    lensTable.replaceChildren(
      h("thead", {}, h("tr", {}, h("th", {}, "token"), names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows),
    );
  }

  const lensCell = (index, column) => lensTable.querySelector(`td[data-index="${index}"][data-column="${column}"]`);

  function showLensCell() {
    const old = lensTable.querySelector("[aria-selected=true]");
    old?.setAttribute("aria-selected", "false");
    old?.setAttribute("tabindex", "-1");
    const cell = lensCell(at, lensColumn);
    cell?.setAttribute("aria-selected", "true");
    cell?.setAttribute("tabindex", "0");
    const state = data.lens[lensColumn];
    const list = state.ids[at].map((id, place) => `${quoted(data.tokens[id])} ${formatProbability(state.p[at][place])}`).join(", ");
    const actual = at + 1 < data.ids.length ? ` The text continues with ${label(at + 1)}.` : "";
    lensNote.textContent = `After ${label(at)} (token ${at + 1}), ${lensColumn ? `layer ${lensColumn - 1}` : "embeddings"}: ${list}.${actual}`;
  }

  lensTable.addEventListener("click", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    lensColumn = Number(cell.dataset.column);
    selectToken(Number(cell.dataset.index));
    cell.focus({ preventScroll: true });
  });
  lensTable.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    lensColumn = Math.min(data.lens.length - 1, Math.max(0, lensColumn + right));
    selectToken(at + down);
    lensCell(at, lensColumn)?.focus();
  });

  const redraw = () => data && (showGrid(), showHead());
  document.addEventListener("themechange", redraw, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  await compute();
}
