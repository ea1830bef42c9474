/**
 * The branches of the view Write.
 *
 * A branch is {number, parent, at, start, tokens, next, reason}. It has the tokens of its parent before `at`, and
 * another token there. `start` has the ids before the text, `next` the distribution after it, if it is known, and
 * `reason` why the text ended. Branches are kept until the user leaves the view.
 */
import { h } from "../../lib/dom.js";
import { formatBits, formatQuantity, tokenLabel } from "../../lib/format.js";
import { sumBits } from "./sums.js";

const MAX_BRANCHES = 24;

export class Branches {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.list = h("ul", { class: "branches" });
    this.element = h("section", { class: "card" }, h("h2", {}, "Branches"), this.list);
    this.clear();
  }

  clear() {
    this.all = [];
    this.numAdded = 0;
    this.draw(null);
  }

  /** Add a branch, and return it with its number. */
  add(branch) {
    this.numAdded += 1;
    const added = { number: this.numAdded, ...branch };
    this.all.push(added);
    if (this.all.length > MAX_BRANCHES) this.all.shift();
    return added;
  }

  /** Draw the list again; the focus stays on its branch. */
  draw(current) {
    const focused = [...this.list.children].findIndex((each) => each.contains(document.activeElement));
    this.list.replaceChildren(...this.all.map((branch) => this.drawBranch(branch, branch === current)));
    if (!this.all.length) this.list.append(h("li", { class: "quiet" }, "None yet."));
    this.list.children[focused]?.querySelector("button")?.focus({ preventScroll: true });
  }

  drawBranch(branch, isCurrent) {
    const bits = formatBits(sumBits(branch).bits / Math.max(1, branch.tokens.length));
    const origin = branch.parent
      ? h("span", {}, `token ${branch.at + 1}: `, h("code", {}, tokenLabel(branch.tokens[branch.at])))
      : "from the beginning";
    return h(
      "li",
      { style: { "--depth": Math.min(4, depthOf(branch)) } },
      h(
        "button",
        {
          type: "button",
          class: "plain branch",
          "aria-pressed": String(isCurrent),
          onclick: () => this.onChoose(branch),
        },
        h("b", {}, `${branch.number}`),
        " ",
        origin,
        h("small", { class: "quiet" }, `${formatQuantity(branch.tokens.length, "token")}, ${bits} bits each`),
      ),
    );
  }
}

function depthOf(branch) {
  return branch.parent ? 1 + depthOf(branch.parent) : 0;
}
