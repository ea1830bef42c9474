/** One tokenizer of the view Tokenizer: the text as its tokens, and the merges of one of them. */
import { isAbort, postJson, showError } from "../../lib/api.js";
import { debounce, field, figure, h, select } from "../../lib/dom.js";
import { formatFigure, formatInteger, formatQuantity } from "../../lib/format.js";
import { clampIndex, ROW_STEPS } from "../../lib/keys.js";

const NUM_COLOURS = 6;
const MAX_TRIED = 16; // tokenizers, until one can be read; the server accepts no more

export class Panel {
  constructor({ signal }, tokenizers, isOptional) {
    this.signal = signal;
    this.id = "";
    this.fingerprint = null; // of the vocabulary that is shown
    this.text = "";
    this.tokens = [];
    this.merges = new Map(); // id of a token → its description
    this.request = null;
    const options = tokenizers.map((each) => [each.id, each.name]);
    this.select = select(isOptional ? [["", "none"], ...options] : options, "", (value) => {
      this.choose(value);
      this.onSelect();
    });
    this.same = h("p", { class: "quiet same-tokenizer", role: "status" });
    this.figures = h("dl", { class: "figures small" });
    this.flow = h("div", { class: "tokens", role: "listbox", "aria-label": "Tokens", "aria-orientation": "horizontal" });
    this.detail = h("div", { class: "merges", "aria-live": "polite" });
    this.body = h("div", { class: "panel" }, this.figures, this.flow, this.detail);
    this.element = h(
      "section",
      { class: "card", "aria-label": isOptional ? "Second tokenizer" : "First tokenizer" },
      field(isOptional ? "Compared with" : "Tokenizer", this.select),
      this.same,
      this.body,
    );
    this.flow.addEventListener("pointerover", (event) => this.focus(event.target.closest("[data-index]"), false));
    this.flow.addEventListener("pointerleave", () => this.onRange(null));
    this.flow.addEventListener("focusin", (event) => this.focus(event.target.closest("[data-index]"), true));
    this.flow.addEventListener("focusout", () => this.onRange(null));
    this.flow.addEventListener("keydown", (event) => this.handleKey(event));
    this.show = debounce((index) => this.showMerges(index), 40, signal);
  }

  choose(id) {
    this.id = id;
    this.select.value = id;
    this.merges.clear();
  }

  /** Show the first of some tokenizers that can be read, or the error of the first. */
  async open(ids) {
    this.choose(ids[0]);
    await this.encode(ids.slice(0, MAX_TRIED));
  }

  /** Say whether the other panel shows the same tokenizer, maybe under another name. */
  compare(other) {
    const isSame = this.fingerprint !== null && this.fingerprint === other.fingerprint;
    this.same.textContent = isSame ? "This is the same tokenizer." : "";
  }

  async encode(ids = [this.id]) {
    this.request?.abort();
    this.request = new AbortController();
    const signal = AbortSignal.any([this.request.signal, this.signal]);
    this.fingerprint = null;
    if (!this.id) {
      this.problem?.remove();
      this.body.hidden = true;
      return;
    }
    try {
      const answer = await postJson("/api/tokenizer/encode", { tokenizer: ids, text: this.text }, { signal });
      if (answer.tokenizer !== this.id) this.choose(answer.tokenizer);
      this.fingerprint = answer.fingerprint;
      this.problem?.remove();
      this.body.hidden = false;
      this.draw(answer);
    } catch (error) {
      if (isAbort(error)) return;
      this.problem?.remove();
      this.problem = h("div", { class: "panel" });
      this.body.before(this.problem);
      this.body.hidden = true;
      showError(this.problem, error, { retry: () => this.encode() });
    }
  }

  draw(answer) {
    this.figures.replaceChildren(
      figure("Tokens", formatInteger(answer.num_tokens), `${formatInteger(answer.num_distinct)} distinct`),
      figure(
        "Bytes per token",
        answer.num_tokens ? formatFigure(answer.num_bytes / answer.num_tokens, 3) : "–",
        `of ${formatQuantity(answer.num_bytes, "byte")}`,
      ),
      figure("Vocabulary", formatInteger(answer.vocab_size), formatQuantity(answer.num_merges, "merge")),
    );
    let start = 0;
    this.tokens = answer.tokens.map((token) => {
      const end = start + token.bytes.length / 2;
      const placed = { ...token, start, end };
      start = end;
      return placed;
    });
    const parts = this.tokens.flatMap((token, index) => drawToken(token, index));
    const numMore = answer.num_tokens - this.tokens.length;
    if (numMore > 0) parts.push(h("span", { class: "quiet" }, ` … ${formatInteger(numMore)} more`));
    if (!this.tokens.length) parts.push(h("span", { class: "quiet" }, "Type or paste a text above."));
    this.flow.replaceChildren(...parts);
    this.flow.querySelector("[data-index]")?.setAttribute("tabindex", 0);
    const longest = this.tokens.reduce(
      (best, token, index) => (token.bytes.length > (this.tokens[best]?.bytes.length ?? 0) ? index : best),
      0,
    );
    if (this.tokens.length) this.showMerges(longest);
    else this.detail.replaceChildren();
  }

  focus(span, isFocus) {
    if (!span) return;
    const index = Number(span.dataset.index);
    if (isFocus) {
      for (const each of this.flow.querySelectorAll("[tabindex='0']")) each.setAttribute("tabindex", -1);
      span.setAttribute("tabindex", 0);
    }
    this.show(index);
    this.onRange([this.tokens[index].start, this.tokens[index].end]);
  }

  handleKey(event) {
    const current = Number(document.activeElement?.dataset?.index);
    if (!(event.key in ROW_STEPS) || Number.isNaN(current)) return;
    event.preventDefault();
    const next = clampIndex(current + ROW_STEPS[event.key], this.tokens.length - 1);
    this.flow.querySelector(`[data-index="${next}"]`)?.focus();
  }

  /** Mark the tokens that share bytes with a range of the other tokenizer's token. */
  mark(range) {
    for (const span of this.flow.querySelectorAll("[data-index]")) {
      const token = this.tokens[Number(span.dataset.index)];
      span.classList.toggle("same", range !== null && token.start < range[1] && token.end > range[0]);
    }
  }

  async showMerges(index) {
    const token = this.tokens[index];
    const tokenizer = this.id;
    if (!token) return;
    this.flow.querySelector(".shown")?.classList.remove("shown");
    this.flow.querySelector(`[data-index="${index}"]`)?.classList.add("shown");
    try {
      if (!this.merges.has(token.id)) {
        const described = await postJson("/api/tokenizer/token", { tokenizer, token: token.id }, { signal: this.signal });
        if (tokenizer !== this.id) return; // another one was selected meanwhile
        this.merges.set(token.id, described);
      }
    } catch (error) {
      showError(this.detail, error);
      return;
    }
    const found = this.merges.get(token.id);
    if (!this.flow.querySelector(`[data-index="${index}"].shown`)) return; // another token was selected
    const bytes = h("code", {}, found.bytes.match(/../g).join(" "));
    this.detail.replaceChildren(
      h(
        "p",
        { class: "token-line" },
        h("code", { class: "chip" }, found.shown),
        h("span", {}, `id ${found.id}`),
        h("span", { class: "quiet" }, `${formatQuantity(found.num_bytes, "byte")}: `, bytes),
      ),
      drawMerges(found),
    );
  }
}

/** Return the merges that build a token, or the reason why there are none. */
function drawMerges(found) {
  if (found.special) return h("p", { class: "quiet" }, "special token: never split and never made by merges");
  if (!found.num_merges) return h("p", { class: "quiet" }, "a single byte: no merge made it");
  const chip = (text, className = "chip") => h("code", { class: className }, text);
  const items = found.merges.map((merge) =>
    h(
      "li",
      {},
      h("span", { class: "quiet" }, `merge ${formatInteger(merge.number)}`),
      chip(merge.left),
      "+",
      chip(merge.right),
      "→",
      chip(merge.result, "chip result"),
    ),
  );
  return h("ol", { class: "merge-list" }, items);
}

function drawToken(token, index) {
  const label = token.text === null ? `‹${token.bytes.match(/../g).join(" ")}›` : token.text.replaceAll(
    "\n",
    "↵",
  ).replaceAll("\t", "⇥");
  const className = `token t${index % NUM_COLOURS}${token.special ? " special" : ""}${token.text === null ? " raw" : ""}`;
  const span = h(
    "span",
    {
      class: className,
      role: "option",
      tabindex: -1,
      dataset: { index },
      "aria-label": `${token.text?.trim() || label}, id ${token.id}`,
    },
    h("span", { class: "token-text" }, label),
    h("small", { "aria-hidden": "true" }, String(token.id)),
  );
  return token.text?.includes("\n") ? [span, h("br")] : [span];
}
