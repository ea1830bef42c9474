/**
 * The view Write: a text token by token, the distribution before each token, and branches.
 *
 * A branch is a list of tokens. Each token has its surprise in bits and the distribution before it, in which
 * another token can be chosen: that starts a new branch. Branches are kept until the user leaves the view.
 */
import { isAbort, postJson, streamEvents } from "../lib/api.js";
import { lineChart } from "../lib/chart.js";
import { drawCandidates, drawFacts } from "../lib/distribution.js";
import { choice, field, figure, h, select, slider } from "../lib/dom.js";
import { formatBits, formatQuantity, tokenLabel, tokenText } from "../lib/format.js";
import { noModels, pickModel } from "../lib/model_picker.js";

const MAX_BRANCHES = 24;
const FULL_HEAT = { bits: 10, true_bits: 10, excess: 3 }; // bits with the strongest colour
const TOP_K = [0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500];
const LENGTHS = [10, 20, 50, 100, 200, 300, 400, 500];
const ENDINGS = {
  stop: "The text is complete.",
  length: "The limit of tokens is reached.",
  context: "The context of the model is full.",
  user: "Stopped.",
  lost: "The server ended the connection before the text was complete. Press Continue.",
};

export async function mount(element, context) {
  const { params, signal } = context;
  const picker = await pickModel(context, () => clear());
  const heading = h(
    "header",
    {},
    h("h1", {}, "Write"),
    h("p", {}, "Every token with its surprise. Choose another candidate to branch."),
  );
  if (picker.empty) {
    element.append(heading, noModels());
    return;
  }
  const number = (name, value) => (params.has(name) && Number.isFinite(
    Number(params.get(name)),
  ) ? Number(params.get(name)) : value);

  // Controls
  const prompt = h("textarea", { rows: 3, spellcheck: "false" });
  prompt.value = params.get("prompt") ?? "Once upon a time,";
  const keep = (name) => (value) => context.setParams({ [name]: value });
  const temperature = slider({
    label: "Temperature",
    value: number("temperature", 1),
    min: 0,
    max: 2,
    step: 0.05,
    format: (value) => (value ? value.toFixed(2) : "0: likeliest"),
    onInput: keep("temperature"),
  });
  const topP = slider({
    label: "Top-p",
    value: number("top_p", 1),
    min: 0.05,
    max: 1,
    step: 0.05,
    format: (value) => (value < 1 ? value.toFixed(2) : "off"),
    onInput: keep("top_p"),
  });
  const topK = slider({
    label: "Top-k",
    value: number("top_k", 0),
    values: TOP_K,
    format: (value) => (value ? String(value) : "off"),
    onInput: keep("top_k"),
  });
  const length = slider({ label: "New tokens", value: number("length", 200), values: LENGTHS, onInput: keep("length") });
  const seed = h("input", { type: "number", min: 0, step: 1, max: 4294967295 });
  seed.value = number("seed", 1);
  seed.addEventListener("change", () => context.setParams({ seed: seed.value }));
  const compare = select([["auto", "for runs on the storybook"], ["yes", "always"], ["no", "never"]], params.get("grammar") ?? "auto", (value) => {
    context.setParams({ grammar: value === "auto" ? null : value });
    clear();
  });
  const writeButton = h("button", { type: "submit", class: "primary" }, "Write");
  const scoreButton = h("button", { type: "button", onclick: () => start(false) }, "Score only");
  const moreButton = h("button", { type: "button", disabled: true, onclick: () => extend(current) }, "Continue");
  const stopButton = h("button", { type: "button", disabled: true, onclick: () => stop() }, "Stop");
  const form = h(
    "form",
    { class: "card write-form", onsubmit: (event) => (event.preventDefault(), start(true)) },
    picker.element,
    field("Beginning of the text", prompt),
    temperature,
    topP,
    topK,
    length,
    field("Seed", seed, "The same seed and settings give the same text."),
    field("True probabilities", compare),
    h("div", { class: "write-buttons" }, writeButton, stopButton, moreButton, scoreButton),
  );

  // The text
  const tokens = h("div", { class: "story", role: "listbox", "aria-label": "Tokens of the text", tabindex: 0 });
  const status = h("p", { class: "quiet write-status", role: "status" }, "Press Write. The text appears here.");
  const colours = h("div", { class: "row" });
  const scale = h("span", { class: "heat-scale quiet" });
  const figures = h("dl", { class: "figures write-figures" });
  const chartBox = h("div", {});
  const chart = lineChart(chartBox, { height: 210, signal });
  const branchList = h("ul", { class: "branches" });
  const text = h(
    "section",
    { class: "card" },
    h("div", { class: "row" }, h("h2", {}, "Text"), h("span", { class: "end" }, colours)),
    tokens,
    h("div", { class: "row" }, status, h("span", { class: "end" }, scale)),
    figures,
  );
  const surprise = h("section", { class: "card" }, chartBox);
  const branchCard = h("section", { class: "card" }, h("h2", {}, "Branches"), branchList);

  // The distribution
  const distributionTitle = h("h2", {}, "Next token");
  const facts = h("dl", { class: "figures facts" });
  const candidates = h("div", { class: "candidates" });
  const distribution = h("section", { class: "card distribution", "aria-live": "off" }, distributionTitle, facts, candidates);

  element.append(
    heading,
    h(
      "div",
      { class: "write-grid" },
      h("div", { class: "write-left" }, form, branchCard),
      h("div", { class: "write-text" }, text, surprise),
      distribution,
    ),
  );

  let branches = [];
  let current = null;
  let selected = null; // the index of the selected token in the current branch
  let follows = true; // whether the selection follows the last token
  let colour = "bits";
  let hasTruth = false;
  let busy = null;
  let numBranches = 0;
  let drawing = 0;

  function settings() {
    const grammar = { auto: null, yes: true, no: false }[compare.value];
    return { run: picker.run(), temperature: temperature.get(), top_p: topP.get(), top_k: topK.get(), seed: Math.max(
      0,
      Math.floor(Number(seed.value) || 0),
    ), grammar };
  }

  /** Read the beginning of the text as a new branch, and continue it if `writes`. */
  async function start(writes) {
    stop();
    context.setParams({ prompt: prompt.value, run: picker.run() });
    const job = begin("Reading the text…");
    if (matchMedia("(max-width: 720px)").matches) text.scrollIntoView();
    try {
      const read = await postJson("/api/write/read", { ...settings(), text: prompt.value }, { signal: job.signal });
      setTruth(read.grammar);
      addBranch({ parent: null, at: read.tokens.length, start: read.start, tokens: read.tokens, next: read.next, reason: "" });
      finish(job);
      if (writes) await extend(current);
      else status.textContent = `${formatQuantity(read.tokens.length, "token")}. Choose a token to continue.`;
    } catch (error) {
      fail(job, error);
    }
  }

  /** Generate tokens at the end of a branch. */
  async function extend(branch) {
    stop();
    const job = begin("Writing…");
    branch.next = null;
    branch.reason = "";
    let reason = "";
    try {
      const ids = [...branch.start, ...branch.tokens.map((token) => token.id)];
      await streamEvents("/api/write/stream", {
        signal: job.signal,
        body: { ...settings(), ids, max_tokens: length.get() },
        onEvent(name, data) {
          if (name === "end") reason = data.reason;
          if (name !== "token") return;
          branch.tokens.push(data);
          if (branch === current) appendToken(branch.tokens.length - 1);
        },
      });
      branch.reason = reason || (job.signal.aborted ? "user" : "lost");
      finish(job);
      context.announce(`${formatQuantity(branch.tokens.length, "token")}. ${ENDINGS[branch.reason]}`);
    } catch (error) {
      fail(job, error);
    }
  }

  function begin(message) {
    busy = new AbortController();
    const job = busy;
    signal.addEventListener("abort", () => job.abort(), { signal: job.signal });
    status.textContent = message;
    status.classList.remove("error");
    showState();
    return job;
  }

  function finish(job) {
    if (busy === job) busy = null;
    showState();
    if (!busy && current?.reason) status.textContent = ENDINGS[current.reason];
    showBranches();
  }

  function fail(job, error) {
    if (isAbort(error)) return;
    finish(job);
    status.textContent = error.message;
    status.classList.add("error");
  }

  function stop() {
    busy?.abort();
    busy = null;
    showState();
  }

  function showState() {
    stopButton.disabled = !busy;
    moreButton.disabled = Boolean(busy) || !current || ["stop", "context"].includes(current.reason);
  }

  function clear() {
    stop();
    branches = [];
    current = null;
    numBranches = 0;
    show(null);
    showBranches();
    status.textContent = "Press Write. The text appears here.";
  }

  function setTruth(value) {
    hasTruth = value;
    element.classList.toggle("has-truth", hasTruth);
    if (!hasTruth && colour !== "bits") colour = "bits";
    const options = [["bits", "surprise"], ["true_bits", "true surprise"], ["excess", "excess"]];
    colours.replaceChildren(
      hasTruth
        ? choice("Colour of the tokens", options, colour, (value) => {
            colour = value;
            paint();
          })
        : h("small", { class: "quiet" }, "True probabilities are available for models of the storybook only."),
    );
  }

  // Branches

  function addBranch(branch) {
    numBranches += 1;
    branches.push({ number: numBranches, ...branch });
    if (branches.length > MAX_BRANCHES) branches.shift();
    show(branches.at(-1));
    showBranches();
  }

  /** Start a branch in which token `index` of the current branch is another one. */
  function branchAt(index, candidate) {
    const branch = current;
    if (candidates.contains(document.activeElement)) tokens.focus({ preventScroll: true }); // they are replaced
    const before = branch.tokens[index]?.before ?? branch.next;
    const { id, text, stop: ends } = candidate;
    const token = { id, text, stop: ends, bits: -Math.log2(candidate.p), before };
    if (candidate.true !== undefined) token.true_bits = candidate.true > 0 ? -Math.log2(candidate.true) : null;
    stop();
    addBranch({
      parent: branch,
      at: index,
      start: branch.start,
      tokens: [...branch.tokens.slice(0, index), token],
      next: null,
      reason: ends ? "stop" : "",
    });
    selectToken(index, { follow: true });
    if (ends) {
      status.textContent = ENDINGS.stop;
      showState();
    } else extend(current);
  }

  function showBranches() {
    const focused = [...branchList.children].findIndex((each) => each.contains(document.activeElement));
    branchList.replaceChildren(
      ...branches.map((branch) => {
        const depth = Math.min(4, depthOf(branch));
        const first = branch.parent ? `${tokenLabel(branch.tokens[branch.at])}` : "from the beginning";
        const sums = sum(branch);
        const detail = `${formatQuantity(branch.tokens.length, "token")}, ${formatBits(sums.bits / Math.max(1, branch.tokens.length))} bits each`;
        return h(
          "li",
          { style: { "--depth": depth } },
          h(
            "button",
            {
              type: "button",
              class: "plain branch",
              "aria-pressed": String(branch === current),
              onclick: () => (stop(), show(branch), showBranches()),
            },
            h("b", {}, `${branch.number}`),
            " ",
            branch.parent ? h("span", {}, `token ${branch.at + 1}: `, h("code", {}, first)) : first,
            h("small", { class: "quiet" }, detail),
          ),
        );
      }),
    );
    if (!branches.length) branchList.append(h("li", { class: "quiet" }, "None yet."));
    branchList.children[focused]?.querySelector("button")?.focus({ preventScroll: true });
  }

  function depthOf(branch) {
    return branch.parent ? 1 + depthOf(branch.parent) : 0;
  }

  // The text

  function show(branch) {
    current = branch;
    selected = null;
    follows = true;
    tokens.replaceChildren(...(branch?.tokens ?? []).map((token, index) => tokenElement(token, index)));
    if (branch?.next) tokens.append(h(
      "span",
      { class: "piece next-place", role: "option", dataset: { index: branch.tokens.length } },
      "…",
    ));
    if (branch?.tokens.length) selectToken(branch.next ? branch.tokens.length : branch.tokens.length - 1, { follow: true });
    else showDistribution();
    if (branch?.reason) status.textContent = ENDINGS[branch.reason];
    showState();
    showSums();
  }

  function appendToken(index) {
    tokens.querySelector(".next-place")?.remove();
    const isAtEnd = tokens.scrollTop + tokens.clientHeight > tokens.scrollHeight - 40;
    tokens.append(tokenElement(current.tokens[index], index));
    if (follows) selectToken(index, { follow: true });
    if (isAtEnd) tokens.scrollTop = tokens.scrollHeight;
    showSums();
  }

  function tokenElement(token, index) {
    const place = h(
      "span",
      { class: "piece", role: "option", id: `token-${index}`, "aria-selected": "false", dataset: { index }, title: titleOf(token) },
      tokenText(token),
    );
    heat(place, token);
    return place;
  }

  function titleOf(token) {
    if (token.bits === undefined) return tokenLabel(token);
    if (token.true_bits === undefined) return `${tokenLabel(token)}: ${formatBits(token.bits)} bits`;
    const truth = token.true_bits === null ? "impossible here" : `${formatBits(token.true_bits)} bits`;
    return `${tokenLabel(token)}: model ${formatBits(token.bits)} bits, truly ${truth}`;
  }

  function valueOf(token) {
    if (colour !== "excess") return token[colour] ?? 0;
    return typeof token.true_bits === "number" ? token.bits - token.true_bits : 0;
  }

  function heat(place, token) {
    const value = valueOf(token) / FULL_HEAT[colour];
    place.style.setProperty("--heat", Math.min(1, Math.abs(value)).toFixed(3));
    place.classList.toggle("cool", value < 0);
    place.classList.toggle("outside", token.true_bits === null);
  }

  function paint() {
    for (const place of tokens.children) {
      const token = current?.tokens[Number(place.dataset.index)];
      if (token) heat(place, token);
    }
    scale.replaceChildren(
      ...(colour === "excess" ? [
        h("span", {}, `−${FULL_HEAT.excess}`),
        h("i", { class: "both" }),
      ] : [h("span", {}, "0"), h("i", {})]),
      h("span", {}, `${FULL_HEAT[colour]} bits`),
    );
  }

  function selectToken(index, { follow = false, focus = false } = {}) {
    tokens.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    selected = index;
    follows = follow;
    const place = tokens.children[index];
    place?.setAttribute("aria-selected", "true");
    if (place?.id) tokens.setAttribute("aria-activedescendant", place.id);
    if (focus && place) place.scrollIntoView({ block: "nearest" });
    showDistribution();
  }

  tokens.addEventListener("click", (event) => {
    const place = event.target.closest(".piece");
    if (place) selectToken(Number(place.dataset.index));
  });
  tokens.addEventListener("keydown", (event) => {
    const last = tokens.children.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") candidates.querySelector("button")?.focus();
    else if (event.key in moves && last >= 0) selectToken(
      Math.min(last, Math.max(0, (selected ?? 0) + moves[event.key])),
      { focus: true },
    );
    else return;
    event.preventDefault();
  });
  candidates.addEventListener("focusin", () => (follows = false)); // a new token would replace the focused one
  candidates.addEventListener("keydown", (event) => {
    const buttons = [...candidates.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") tokens.focus();
    else if (event.key === "ArrowDown") buttons[Math.min(buttons.length - 1, at + 1)]?.focus();
    else if (event.key === "ArrowUp") buttons[Math.max(0, at - 1)]?.focus();
    else return;
    event.preventDefault();
  });

  // Sums and the chart

  function sum(branch) {
    const total = { bits: 0, true: 0, excess: 0, expected: 0, numTrue: 0 };
    for (const token of branch.tokens) {
      total.bits += token.bits ?? 0;
      if (typeof token.true_bits === "number") {
        total.numTrue += 1;
        total.true += token.true_bits;
        total.excess += token.bits - token.true_bits;
        total.expected += token.before?.expected_excess ?? 0;
      }
    }
    return total;
  }

  function showSums() {
    cancelAnimationFrame(drawing);
    drawing = requestAnimationFrame(() => {
      const branch = current ?? { tokens: [] };
      const total = sum(branch);
      const count = branch.tokens.length;
      const rows = [
        ["Tokens", String(count), ""],
        ["Model, bits", formatBits(total.bits, 1), count ? `${formatBits(total.bits / count)} / token` : ""],
      ];
      if (hasTruth) {
        const mean = (value, digits) => (total.numTrue ? `${formatBits(value / total.numTrue, digits)} / token` : "");
        rows.push(["True, bits", formatBits(total.true, 1), mean(total.true, 2)]);
        rows.push(["Excess, bits", formatBits(total.excess, 1), mean(total.excess, 3)]);
        rows.push(["Expected excess", formatBits(total.expected, 1), mean(total.expected, 3)]);
        rows.push(["In the grammar", String(total.numTrue), `of ${count} tokens`]);
      }
      figures.replaceChildren(...rows.map((row) => figure(...row)));
      const series = [{ name: "model", colour: "var(--c1)", points: branch.tokens.map((token, index) => [index + 1, token.bits]) }];
      if (hasTruth) series.unshift({
        name: "grammar",
        colour: "var(--c2)",
        wide: true, // the model's line is drawn on it, and both stay visible
        points: branch.tokens.map((token, index) => [index + 1, token.true_bits]),
      });
      chart.update({ title: "Surprise of each token", x: { label: "token" }, y: { label: "bits" }, series, references: [] });
    });
  }

  // The distribution at the selected token

  function showDistribution() {
    const token = current?.tokens[selected];
    const before = token ? token.before : current?.next;
    distributionTitle.replaceChildren(
      selected === null ? "Next token" : `Token ${selected + 1} `,
      token ? h("code", {}, tokenLabel(token)) : "",
    );
    if (!before) {
      facts.replaceChildren();
      const reason = current ? "No token is predicted here." : "Select a token of the text to see what else was possible.";
      candidates.replaceChildren(h("p", { class: "quiet" }, reason));
      return;
    }
    facts.replaceChildren(...drawFacts(token, before));
    const index = selected;
    candidates.replaceChildren(...drawCandidates(token, before, (candidate) => branchAt(index, candidate)));
  }

  setTruth(false);
  colours.replaceChildren();
  paint();
  show(null);
  showBranches();
}
