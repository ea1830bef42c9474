/**
 * The views of the studio, in the order of the navigation.
 *
 * A view is a module `views/NAME.js` that exports
 *
 *     export function mount(element, context)
 *
 * `mount` fills `element`, an empty <div>, and may be async. It is called each time the user opens the view. The
 * parts of a large view are modules in `views/NAME/`.
 * `context` has
 *
 *     signal            an AbortSignal that aborts when the user leaves the view. Pass it to getJson, postJson,
 *                       streamEvents, charts and addEventListener; then no other cleanup is needed.
 *     params            a URLSearchParams with what follows `?` in the address, such as `#/runs?ids=a,b`
 *     setParams(object) replaces these parameters in the address without opening the view again; null or ""
 *                       removes one. State that a user may want to keep or share belongs there.
 *     announce(text)    makes screen readers read out a short text
 *     studio            {folder, argument, version}; `argument` names the folder in a command
 *
 * Shared modules: `lib/dom.js` (elements and controls), `lib/api.js` (requests, streams of events, errors),
 * `lib/chart.js` (charts with labelled axes), `lib/format.js` (numbers and tokens as text), `lib/keys.js` (keys
 * that move a selection), `lib/theme.js` (colours), `lib/model_picker.js` (choice of a model).
 * Insert data as text only, as `h("p", {}, text)` does; innerHTML is not used anywhere.
 */
export const VIEWS = [
  { name: "runs", title: "Runs" },
  { name: "tokenizer", title: "Tokenizer" },
  { name: "write", title: "Write" },
  { name: "inside", title: "Inside" },
  { name: "calculator", title: "Calculator" },
];
