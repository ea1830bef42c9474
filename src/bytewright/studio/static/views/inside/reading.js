/** The answer of the server about a text: its tokens, their attention weights, norms and predictions. */
import { quoted, tokenLabel } from "../../lib/format.js";

export class Reading {
  constructor(answer) {
    this.answer = answer;
    this.ids = answer.ids;
    this.weights = answer.attention
      ? Uint8Array.from(atob(answer.attention), (character) => character.charCodeAt(0))
      : null; // an attention of a plugin can have none
  }

  /** Return a token of the text. */
  token(index) {
    return this.answer.tokens[this.ids[index]];
  }

  /** Return a token of the text in quotation marks. */
  label(index) {
    return quoted(this.token(index));
  }

  /** Return a token of the text without spaces around it, unless it consists of spaces. */
  shortLabel(index) {
    const token = this.token(index);
    return tokenLabel({ ...token, text: token.text.trim() || token.text });
  }

  /** Return the weight of token `to` for token `from` in a head {layer, index}, from 0 to 1. */
  weight(head, from, to) {
    if (!this.weights || to > from) return 0;
    const size = (this.ids.length * (this.ids.length + 1)) / 2;
    const start = (head.layer * this.answer.num_heads + head.index) * size;
    return this.weights[start + (from * (from + 1)) / 2 + to] / 255;
  }
}
