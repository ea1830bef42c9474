/** The choice of a model, and tokens as text, for the views that run a model. */
import { getJson } from "./api.js";
import { field, h, select } from "./dom.js";

/**
 * Return {element, run(), empty}: a field to choose among the runs that have a model. The choice is kept in the
 * address as `run`. `onChange(id)` is called when the user chooses another one.
 */
export async function pickModel(context, onChange = () => {}) {
  const { runs } = await getJson("/api/write/runs", { signal: context.signal });
  const wanted = context.params.get("run");
  const control = select(
    runs.map((run) => [run.id, run.name]),
    runs.some((run) => run.id === wanted) ? wanted : runs[0]?.id,
    (id) => {
      context.setParams({ run: id });
      onChange(id);
    },
  );
  return { element: field("Run", control), run: () => control.value, empty: runs.length === 0 };
}

/** Return what a view shows if no run has a model. */
export function noModels() {
  return h("div", { class: "notice" }, h("p", {}, "No run in this folder has a checkpoint and a tokenizer yet. Train one, for example with "), h("p", {}, h("code", {}, "bytewright demo")));
}

/** Return a token as one line of text: spaces and line breaks are visible. */
export function tokenLabel(text) {
  if (text === "<|endoftext|>") return "⟨end⟩";
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** Return a token in quotation marks. */
export function quoted(text) {
  return `“${tokenLabel(text)}”`;
}

/** Return 0.0123 as "1.2 %". */
export function percent(value) {
  if (value > 0.9995 && value < 1) return ">99.9 %";
  if (value > 0 && value < 0.0005) return "<0.1 %";
  return `${(100 * value).toFixed(1)} %`;
}

/** Return a number of bits. */
export function bits(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = Math.abs(value).toFixed(digits);
  return `${value < 0 && Number(text) ? "−" : ""}${text}`;
}
