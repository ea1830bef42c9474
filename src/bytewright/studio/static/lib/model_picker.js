/** The choice of a model, for the views that run one. */
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
export function noModels({ studio }) {
  return h(
    "div",
    { class: "notice" },
    h("p", {}, "No run in this folder has a checkpoint and a tokenizer yet. Train one, for example with "),
    h("p", {}, h("code", {}, `bytewright demo --out ${studio.argument}/demo`)),
  );
}
