/**
 * The distribution of the next token, as `/api/write` describes it: of the model, and the true one of the
 * grammar if there is one.
 */
import { h } from "../../lib/dom.js";
import { formatBits, formatProbability, tokenLabel } from "../../lib/format.js";

export class Distribution {
  /**
   * `onChoose(index, candidate)` is called when a candidate is pressed, `onFocus()` when one gets the focus, and
   * `onEscape()` when Escape is pressed in one.
   */
  constructor({ onChoose, onFocus, onEscape }) {
    this.onChoose = onChoose;
    this.onEscape = onEscape;
    this.title = h("h2", {}, "Next token");
    this.facts = h("dl", { class: "figures facts" });
    this.candidates = h("div", { class: "candidates" });
    this.candidates.addEventListener("focusin", onFocus);
    this.candidates.addEventListener("keydown", (event) => this.handleKey(event));
    this.element = h(
      "section",
      { class: "card distribution", "aria-live": "off" },
      this.title,
      this.facts,
      this.candidates,
    );
  }

  handleKey(event) {
    const buttons = [...this.candidates.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") this.onEscape();
    else if (event.key === "ArrowDown") buttons[Math.min(buttons.length - 1, at + 1)]?.focus();
    else if (event.key === "ArrowUp") buttons[Math.max(0, at - 1)]?.focus();
    else return;
    event.preventDefault();
  }

  focus() {
    this.candidates.querySelector("button")?.focus();
  }

  hasFocus() {
    return this.candidates.contains(document.activeElement);
  }

  /** Show the distribution before token `index` of a branch, or after its last token. */
  show(branch, index) {
    const token = branch?.tokens[index];
    const before = token ? token.before : branch?.next;
    this.title.replaceChildren(
      index === null ? "Next token" : `Token ${index + 1} `,
      token ? h("code", {}, tokenLabel(token)) : "",
    );
    if (!before) {
      this.facts.replaceChildren();
      const reason = branch ? "No token is predicted here." : "Select a token of the text to see what else was possible.";
      this.candidates.replaceChildren(h("p", { class: "quiet" }, reason));
      return;
    }
    this.facts.replaceChildren(...drawFacts(token, before));
    this.candidates.replaceChildren(...drawCandidates(token, before, (candidate) => this.onChoose(index, candidate)));
  }
}

/** Return entries of a <dl>: the entropy of a distribution, and the surprise of the chosen token, if any. */
function drawFacts(token, distribution) {
  const hasTruth = distribution.true_entropy !== undefined;
  const rows = [];
  const pair = (model, truth) => [
    h("span", { class: "of-model" }, model),
    hasTruth ? h("span", { class: "of-truth" }, truth) : null,
  ];
  if (token) {
    const truth = token.true_bits === null ? "impossible" : formatBits(token.true_bits);
    rows.push(["Surprise, bits", pair(formatBits(token.bits), truth)]);
  }
  rows.push(["Entropy, bits", pair(formatBits(distribution.entropy), formatBits(distribution.true_entropy))]);
  if (token && hasTruth) {
    rows.push(["Excess, bits", token.true_bits === null ? "–" : formatBits(token.bits - token.true_bits)]);
  }
  if (hasTruth) {
    rows.push(["Expected excess", formatBits(distribution.expected_excess, 3)]);
    rows.push(["Possible tokens", String(distribution.num_possible)]);
  }
  return rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

/** Return a heading and a button for each candidate; `onChoose(candidate)` is called when one is pressed. */
function drawCandidates(token, distribution, onChoose) {
  const hasTruth = distribution.true_entropy !== undefined;
  const largest = Math.max(...distribution.candidates.map((each) => Math.max(each.p, each.true ?? 0)));
  const bar = (share, kind) => h("i", { class: `bar ${kind}`, style: { "--share": `${(100 * share) / largest}%` } });
  const columns = (className, model, truth, drawn) => h(
    "span",
    { class: className },
    h("span", { class: "of-model" }, model),
    truth === null ? null : h("span", { class: "of-truth" }, truth),
    drawn,
  );
  const title = "The probability under the temperature and filters";
  const heading = h(
    "div",
    { class: "candidate-head quiet" },
    h("span", {}, "token"),
    columns("", "model", hasTruth ? "grammar" : null, h("span", { class: "drawn", title }, "drawn")),
  );
  const buttons = distribution.candidates.map((each) => h(
    "button",
    {
      type: "button",
      class: "plain candidate",
      "aria-current": token && each.id === token.id ? "true" : null,
      onclick: () => onChoose(each),
      title: "Continue with this token in a new branch",
    },
    h("code", {}, tokenLabel(each)),
    h("span", { class: "bars" }, bar(each.p, "model"), hasTruth ? bar(each.true, "truth") : null),
    columns(
      "numbers",
      formatProbability(each.p),
      hasTruth ? formatProbability(each.true) : null,
      h("span", { class: "drawn quiet" }, formatProbability(each.drawn)),
    ),
  ));
  return [heading, ...buttons];
}
