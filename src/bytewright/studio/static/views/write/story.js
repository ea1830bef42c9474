/** The text of the view Write: its tokens, of which one is selected, with their colours and the scale of them. */
import { choice, h } from "../../lib/dom.js";
import { formatBits, tokenLabel, tokenText } from "../../lib/format.js";
import { clampIndex, TEXT_STEPS } from "../../lib/keys.js";

const FULL_HEAT = { bits: 10, true_bits: 10, excess: 3 }; // bits with the strongest colour
const MEASURES = [["bits", "surprise"], ["true_bits", "true surprise"], ["excess", "excess"]];

export class Story {
  /** `onSelect()` is called after another token is selected, `onEnter()` after the key Enter. */
  constructor({ onSelect, onEnter }) {
    this.onSelect = onSelect;
    this.onEnter = onEnter;
    this.branch = null;
    this.selected = null; // the index of the selected token in the branch
    this.follows = true; // whether the selection follows the last token
    this.measure = "bits"; // what the colours show
    this.tokens = h("div", { class: "story", role: "listbox", "aria-label": "Tokens of the text", tabindex: 0 });
    this.colours = h("div", { class: "row" });
    this.scale = h("span", { class: "heat-scale quiet" });
    this.tokens.addEventListener("click", (event) => {
      const piece = event.target.closest(".piece");
      if (piece) this.select(Number(piece.dataset.index));
    });
    this.tokens.addEventListener("keydown", (event) => this.handleKey(event));
    this.colourAll();
  }

  handleKey(event) {
    const last = this.tokens.children.length - 1;
    if (event.key === "Enter") this.onEnter();
    else if (event.key in TEXT_STEPS && last >= 0) {
      this.select(clampIndex((this.selected ?? 0) + TEXT_STEPS[event.key], last), { focus: true });
    } else return;
    event.preventDefault();
  }

  /** Offer the colours of true probabilities, if there are any. */
  setTruth(hasTruth) {
    if (!hasTruth) this.measure = "bits";
    this.colours.replaceChildren(
      hasTruth
        ? choice("Colour of the tokens", MEASURES, this.measure, (value) => {
            this.measure = value;
            this.colourAll();
          })
        : h("small", { class: "quiet" }, "True probabilities are available for models of the storybook only."),
    );
  }

  /** Show the text of a branch, and select its last token, or the mark of the next one. */
  show(branch) {
    this.branch = branch;
    this.selected = null;
    this.follows = true;
    const tokens = branch?.tokens ?? [];
    this.tokens.replaceChildren(...tokens.map((token, index) => this.drawToken(token, index)));
    if (branch?.next) this.tokens.append(h(
      "span",
      { class: "piece next-piece", role: "option", dataset: { index: tokens.length } },
      "…",
    ));
    if (tokens.length) this.select(branch.next ? tokens.length : tokens.length - 1, { follow: true });
    else this.onSelect();
  }

  /** Show a token that was appended to the branch. */
  append(index) {
    const { tokens } = this;
    tokens.querySelector(".next-piece")?.remove();
    const isAtEnd = tokens.scrollTop + tokens.clientHeight > tokens.scrollHeight - 40;
    tokens.append(this.drawToken(this.branch.tokens[index], index));
    if (this.follows) this.select(index, { follow: true });
    if (isAtEnd) tokens.scrollTop = tokens.scrollHeight;
  }

  select(index, { follow = false, focus = false } = {}) {
    this.tokens.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    this.selected = index;
    this.follows = follow;
    const piece = this.tokens.children[index];
    piece?.setAttribute("aria-selected", "true");
    if (piece?.id) this.tokens.setAttribute("aria-activedescendant", piece.id);
    if (focus && piece) piece.scrollIntoView({ block: "nearest" });
    this.onSelect();
  }

  /** Keep the selection where it is when tokens are appended. */
  stopFollowing() {
    this.follows = false;
  }

  drawToken(token, index) {
    const piece = h(
      "span",
      { class: "piece", role: "option", id: `token-${index}`, "aria-selected": "false", dataset: { index }, title: titleOf(token) },
      tokenText(token),
    );
    this.colourToken(piece, token);
    return piece;
  }

  /** Colour the tokens again, and draw the scale of the colours. */
  colourAll() {
    for (const piece of this.tokens.children) {
      const token = this.branch?.tokens[Number(piece.dataset.index)];
      if (token) this.colourToken(piece, token);
    }
    const isExcess = this.measure === "excess";
    this.scale.replaceChildren(
      h("span", {}, isExcess ? `−${FULL_HEAT.excess}` : "0"),
      h("i", { class: isExcess ? "both" : null }),
      h("span", {}, `${FULL_HEAT[this.measure]} bits`),
    );
  }

  colourToken(piece, token) {
    const value = this.valueOf(token) / FULL_HEAT[this.measure];
    piece.style.setProperty("--heat", Math.min(1, Math.abs(value)).toFixed(3));
    piece.classList.toggle("cool", value < 0);
    piece.classList.toggle("outside", token.true_bits === null);
  }

  valueOf(token) {
    if (this.measure !== "excess") return token[this.measure] ?? 0;
    return typeof token.true_bits === "number" ? token.bits - token.true_bits : 0;
  }
}

function titleOf(token) {
  if (token.bits === undefined) return tokenLabel(token);
  if (token.true_bits === undefined) return `${tokenLabel(token)}: ${formatBits(token.bits)} bits`;
  const truth = token.true_bits === null ? "impossible here" : `${formatBits(token.true_bits)} bits`;
  return `${tokenLabel(token)}: model ${formatBits(token.bits)} bits, truly ${truth}`;
}
