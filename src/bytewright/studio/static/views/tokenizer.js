/** The view Tokenizer: a text as coloured tokens, with the merges of each, for one or two tokenizers. */
import { getJson } from "../lib/api.js";
import { debounce, field, h } from "../lib/dom.js";
import { formatInteger, formatQuantity } from "../lib/format.js";
import { Panel } from "./tokenizer/panel.js";

const EXAMPLE = "Once upon a time, a naïve little dragon counted 1,234 sheep.\n“Why can't I sleep?” she asked the owl, unhappily.";
const LONGEST_PARAM = 1500;
const MAX_CHARACTERS = 150_000; // of at most 3 bytes each; the server accepts 500,000 bytes
const HINT = "Point at a token, or move with the arrow keys, to see its merges.";

export async function mount(element, context) {
  const { tokenizers } = await getJson("/api/tokenizer", { signal: context.signal });
  element.append(h(
    "header",
    {},
    h("h1", {}, "Tokenizer"),
    h("p", {}, `${formatQuantity(tokenizers.length, "tokenizer")} in ${context.studio.folder}`),
  ));
  if (tokenizers.length) await new TokenizerView(element, context, tokenizers).start();
  else element.append(noTokenizers(context));
}

function noTokenizers({ studio }) {
  return h(
    "div",
    { class: "notice" },
    h("p", {}, "This folder has no tokenizer yet. Train one in a shell, here on a text stories.txt:"),
    h("code", {}, `bytewright tokenizer train stories.txt --out ${studio.argument}/stories-10k --vocab-size 10000`),
  );
}

class TokenizerView {
  constructor(element, context, tokenizers) {
    this.element = element;
    this.context = context;
    this.tokenizers = tokenizers;
    this.text = h("textarea", { rows: 4, spellcheck: "false" });
    this.text.value = context.params.get("text") ?? EXAMPLE;
    this.text.addEventListener("input", debounce(() => this.update(), 120, context.signal));
    this.note = h("small", { class: "quiet end", role: "status" }, HINT);
    this.showIds = h("input", { type: "checkbox" });
    this.showIds.addEventListener("change", () => this.panels.classList.toggle("with-ids", this.showIds.checked));
    this.first = new Panel(context, tokenizers, false);
    this.second = new Panel(context, tokenizers, true);
    for (const [panel, other] of [[this.first, this.second], [this.second, this.first]]) {
      panel.onSelect = () => this.update();
      panel.onRange = (range) => other.mark(range);
    }
    this.panels = h("div", { class: "columns" }, this.first.element, this.second.element);
  }

  async start() {
    this.readText();
    await this.openPanels(); // before the rest is shown, so that nothing moves
    this.saveState();
    const options = h("label", { class: "check" }, this.showIds, "show ids");
    this.element.append(
      h("section", { class: "card" }, field("Text", this.text), h("div", { class: "row below" }, options, this.note)),
      this.panels,
    );
  }

  /** Open the tokenizers of the address, or else two that differ. */
  async openPanels() {
    const first = this.context.params.get("a");
    const second = this.context.params.get("b");
    const ids = this.tokenizers.map((each) => each.id);
    await this.first.open(ids.includes(first) ? [first] : ids);
    if (second === "none") await this.second.open([""]);
    else if (ids.includes(second)) await this.second.open([second]);
    else await this.second.open(listOthers(this.tokenizers, this.first.id));
    this.second.compare(this.first);
  }

  /** Split the text with both tokenizers, and save the state in the address. */
  async update() {
    this.readText();
    await Promise.all([this.first.encode(), this.second.encode()]);
    this.second.compare(this.first);
    this.saveState();
  }

  /** Pass the text to both panels, or its beginning if it is very long. */
  readText() {
    const text = this.text.value;
    this.first.text = text.slice(0, MAX_CHARACTERS);
    this.second.text = this.first.text;
    this.note.textContent = text.length > MAX_CHARACTERS
      ? `The text has ${formatInteger(text.length)} characters; the first ${formatInteger(MAX_CHARACTERS)} are split.`
      : HINT;
  }

  /** Save the tokenizers and a short text in the address. */
  saveState() {
    const text = this.text.value;
    const isKept = text.length <= LONGEST_PARAM && text !== EXAMPLE;
    this.context.setParams({ a: this.first.id, b: this.second.id || "none", text: isKept ? text : null });
  }
}

/** Return the ids of tokenizers of other sizes, those that differ most first: copies are of no use. */
function listOthers(tokenizers, id) {
  const own = tokenizers.find((each) => each.id === id);
  const distance = (each) => Math.abs(Math.log(each.num_bytes / own.num_bytes));
  const others = tokenizers.filter((each) => distance(each) > 0).sort((a, b) => distance(b) - distance(a));
  return others.length ? others.map((each) => each.id) : [""];
}
