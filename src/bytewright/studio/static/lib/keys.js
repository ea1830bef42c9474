/** Keys that move a selection, with the steps of each: a number, or [down, right] in a grid. */

export const ROW_STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
export const TEXT_STEPS = { ...ROW_STEPS, ArrowUp: -10, ArrowDown: 10 };
export const CHART_STEPS = { ...ROW_STEPS, PageUp: -10, PageDown: 10 };
export const GRID_STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Return the index from 0 to `last` that is nearest to `index`. */
export function clampIndex(index, last) {
  return Math.min(last, Math.max(0, index));
}
