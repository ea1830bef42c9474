/** The text of the view Inside: its tokens, coloured by the attention of the selected one. */
import { h, scrollWithin } from "../../lib/dom.js";
import { tokenText } from "../../lib/format.js";
import { TEXT_STEPS } from "../../lib/keys.js";

export class AttendedText {
  /** `onSelect(index)` is called when the user selects a token; the index can be out of range. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.selected = 0;
    this.note = h("p", { class: "quiet inside-note" });
    this.tokens = h(
      "div",
      { class: "story inside-story", role: "listbox", "aria-label": "Tokens; colours are attention weights", tabindex: 0 },
    );
    this.tokens.addEventListener("click", (event) => {
      const piece = event.target.closest(".piece");
      if (piece) this.onSelect(Number(piece.dataset.index));
    });
    this.tokens.addEventListener("keydown", (event) => {
      if (!(event.key in TEXT_STEPS)) return;
      event.preventDefault();
      this.onSelect(this.selected + TEXT_STEPS[event.key]);
    });
  }

  draw(reading) {
    this.tokens.replaceChildren(
      ...reading.ids.map((id, index) => h(
        "span",
        { class: "piece", role: "option", id: `inside-${index}`, dataset: { index } },
        tokenText(reading.token(index)),
      )),
    );
  }

  select(index) {
    this.selected = index;
    const piece = this.tokens.children[index];
    this.tokens.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    piece.setAttribute("aria-selected", "true");
    if (document.activeElement === this.tokens) piece.scrollIntoView({ block: "nearest" });
    else scrollWithin(this.tokens, piece); // the user selects it in another part of the view
    this.tokens.setAttribute("aria-activedescendant", `inside-${index}`);
  }

  /** Colour the tokens by their weights for the selected one in a head. */
  colourAll(reading, head) {
    const name = `token ${this.selected + 1} ${reading.label(this.selected)}`;
    if (!reading.weights) {
      this.note.textContent = `Selected: ${name}.`;
      return;
    }
    for (const piece of this.tokens.children) {
      const index = Number(piece.dataset.index);
      const weight = reading.weight(head, this.selected, index);
      piece.style.setProperty("--heat", Math.sqrt(weight).toFixed(3));
      piece.title = index <= this.selected ? `weight ${weight.toFixed(3)}` : "";
    }
    this.note.textContent = `Colours: the weights of each token for ${name} in layer ${head.layer}, head ${head.index}.`;
  }
}
