/**
 * The view Write: a text token by token, the distribution before each token, and branches.
 *
 * Each token has its surprise in bits and the distribution before it, in which another token can be chosen: that
 * starts a new branch. The parts of the view are in the folder `write`.
 */
import { isAbort, postJson, streamEvents } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { formatQuantity } from "../lib/format.js";
import { noModels, pickModel } from "../lib/model_picker.js";
import { Branches } from "./write/branches.js";
import { Distribution } from "./write/distribution.js";
import { WriteForm } from "./write/form.js";
import { Story } from "./write/story.js";
import { Sums } from "./write/sums.js";

const ENDINGS = {
  stop: "The text is complete.",
  length: "The limit of tokens is reached.",
  context: "The context of the model is full.",
  user: "Stopped.",
  lost: "The server ended the connection before the text was complete. Press Continue.",
};

export async function mount(element, context) {
  const view = new WriteView(element, context);
  await view.start();
}

class WriteView {
  constructor(element, context) {
    this.element = element;
    this.context = context;
    this.current = null; // the branch that is shown
    this.job = null; // the AbortController of the request in progress
    this.hasTruth = false; // whether the texts have true probabilities
  }

  async start() {
    const picker = await pickModel(this.context, () => this.clear());
    const heading = h(
      "header",
      {},
      h("h1", {}, "Write"),
      h("p", {}, "Every token with its surprise. Choose another candidate to branch."),
    );
    if (picker.empty) this.element.append(heading, noModels(this.context));
    else this.element.append(heading, this.build(picker));
  }

  build(picker) {
    this.form = new WriteForm(this.context, picker, {
      write: () => this.read({ writes: true }),
      score: () => this.read({ writes: false }),
      extend: () => this.extend(this.current),
      stop: () => this.stop(),
      clear: () => this.clear(),
    });
    this.sums = new Sums(this.context.signal);
    this.distribution = new Distribution({
      onChoose: (index, candidate) => this.branchAt(index, candidate),
      onFocus: () => this.story.stopFollowing(), // a new token would replace the focused candidate
      onEscape: () => this.story.tokens.focus(),
    });
    this.story = new Story({
      onSelect: () => this.distribution.show(this.current, this.story.selected),
      onEnter: () => this.distribution.focus(),
    });
    this.branches = new Branches((branch) => {
      this.stop();
      this.show(branch);
      this.branches.draw(branch);
    });
    this.status = h("p", { class: "quiet write-status", role: "status" });
    this.text = h(
      "section",
      { class: "card write-text" },
      h("div", { class: "row" }, h("h2", {}, "Text"), h("span", { class: "end" }, this.story.colours)),
      this.story.tokens,
      h("div", { class: "row" }, this.status, h("span", { class: "end" }, this.story.scale)),
      this.sums.figures,
    );
    this.clear();
    return h(
      "div",
      { class: "write-grid" },
      this.form.element,
      h(
        "div",
        { class: "write-result" },
        this.text,
        this.distribution.element,
        h("section", { class: "card" }, this.sums.chartBox),
      ),
      this.branches.element,
    );
  }

  /** Read the beginning of the text as a new branch, and continue it if `writes`. */
  async read({ writes }) {
    const { prompt } = this.form;
    this.context.setParams({ prompt: prompt.value, run: this.form.settings().run });
    const job = this.begin("Reading the text…");
    if (matchMedia("(max-width: 720px)").matches) this.text.scrollIntoView();
    try {
      const body = { ...this.form.settings(), text: prompt.value };
      const { tokens, start, next, grammar } = await postJson("/api/write/read", body, { signal: job.signal });
      this.setTruth(grammar);
      this.addBranch({ parent: null, at: tokens.length, start, tokens, next, reason: "" });
      this.finish(job);
      if (writes) await this.extend(this.current);
      else this.setStatus(`${formatQuantity(tokens.length, "token")}. Choose a token to continue.`);
    } catch (error) {
      this.fail(job, error);
    }
  }

  /** Generate tokens at the end of a branch. */
  async extend(branch) {
    const job = this.begin("Writing…");
    branch.next = null;
    branch.reason = "";
    let reason = "";
    try {
      const ids = [...branch.start, ...branch.tokens.map((token) => token.id)];
      await streamEvents("/api/write/stream", {
        signal: job.signal,
        body: { ...this.form.settings(), ids, max_tokens: this.form.length.get() },
        onEvent: (name, data) => {
          if (name === "end") reason = data.reason;
          else if (name === "token") this.appendToken(branch, data);
        },
      });
      branch.reason = reason || (job.signal.aborted ? "user" : "lost");
      this.finish(job);
      this.context.announce(`${formatQuantity(branch.tokens.length, "token")}. ${ENDINGS[branch.reason]}`);
    } catch (error) {
      this.fail(job, error);
    }
  }

  appendToken(branch, token) {
    branch.tokens.push(token);
    if (branch !== this.current) return;
    this.story.append(branch.tokens.length - 1);
    this.sums.show(branch, this.hasTruth);
  }

  /** Start a branch in which token `index` of the current branch is another one. */
  branchAt(index, candidate) {
    const branch = this.current;
    if (this.distribution.hasFocus()) this.story.tokens.focus({ preventScroll: true }); // the candidates are replaced
    const before = branch.tokens[index]?.before ?? branch.next;
    const { id, text, stop: isEnd } = candidate;
    const token = { id, text, stop: isEnd, bits: -Math.log2(candidate.p), before };
    if (candidate.true !== undefined) token.true_bits = candidate.true > 0 ? -Math.log2(candidate.true) : null;
    this.stop();
    this.addBranch({
      parent: branch,
      at: index,
      start: branch.start,
      tokens: [...branch.tokens.slice(0, index), token],
      next: null,
      reason: isEnd ? "stop" : "",
    });
    if (!isEnd) this.extend(this.current);
  }

  addBranch(branch) {
    const added = this.branches.add(branch);
    this.show(added);
    this.branches.draw(added);
  }

  /** Show a branch, or no text. */
  show(branch) {
    this.current = branch;
    this.story.show(branch);
    if (branch?.reason) this.setStatus(ENDINGS[branch.reason]);
    this.showState();
    this.sums.show(branch, this.hasTruth);
  }

  /** Remove all texts. */
  clear() {
    this.stop();
    this.branches.clear();
    this.show(null);
    this.setStatus("Press Write. The text appears here.");
  }

  setTruth(hasTruth) {
    this.hasTruth = hasTruth;
    this.element.classList.toggle("has-truth", hasTruth);
    this.story.setTruth(hasTruth);
  }

  // Requests: at most one is in progress

  begin(message) {
    this.stop();
    const job = new AbortController();
    this.job = job;
    this.context.signal.addEventListener("abort", () => job.abort(), { signal: job.signal });
    this.setStatus(message);
    this.showState();
    return job;
  }

  stop() {
    this.job?.abort();
    this.job = null;
    this.showState();
  }

  finish(job) {
    if (this.job === job) this.job = null;
    this.showState();
    if (!this.job && this.current?.reason) this.setStatus(ENDINGS[this.current.reason]);
    this.branches.draw(this.current);
  }

  fail(job, error) {
    if (isAbort(error)) return;
    this.finish(job);
    this.setStatus(error.message, { isError: true });
  }

  showState() {
    const isComplete = ["stop", "context"].includes(this.current?.reason);
    this.form.showState({ isBusy: this.job !== null, canExtend: this.current !== null && !isComplete });
  }

  setStatus(text, { isError = false } = {}) {
    this.status.textContent = text;
    this.status.classList.toggle("error", isError);
  }
}
