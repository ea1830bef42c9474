/** The shell of the page: navigation, the open view, keys, and the theme. */
import { getJson, showError } from "./lib/api.js";
import { h } from "./lib/dom.js";
import { installThemeSwitch } from "./lib/theme.js";
import { VIEWS } from "./views.js";

const main = document.getElementById("view");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
let leave = null; // the AbortController of the open view
let studio = { folder: "", argument: "", version: "" };

/** Return the name of the view and the parameters in the address, `#/NAME?PARAMETERS`. */
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const view = VIEWS.find((each) => each.name === path) ?? VIEWS[0];
  return { view, params: new URLSearchParams(query) };
}

function linkOf(view) {
  return nav.children[VIEWS.indexOf(view)];
}

async function openView() {
  const { view, params } = readAddress();
  leave?.abort();
  leave = new AbortController();
  const { signal } = leave;
  for (const link of nav.children) link.removeAttribute("aria-current");
  linkOf(view).setAttribute("aria-current", "page");
  document.title = `${view.title} – Bytewright studio`;
  const element = h("div", { class: `view view-${view.name}` });
  main.replaceChildren(element);
  const context = {
    signal,
    studio,
    params,
    setParams(values) {
      // The address can already be that of the next view, which is opened by a later event.
      if (signal.aborted || readAddress().view !== view) return;
      for (const [key, value] of Object.entries(values)) {
        if (value === null || value === undefined || value === "") params.delete(key);
        else params.set(key, value);
      }
      const query = params.toString();
      const address = `#/${view.name}${query ? `?${query}` : ""}`;
      history.replaceState(null, "", address);
      linkOf(view).href = address; // a return to this view restores its state
    },
    announce(text) {
      live.textContent = text;
    },
  };
  try {
    const module = await import(`./views/${view.name}.js`);
    if (!signal.aborted) await module.mount(element, context);
  } catch (error) {
    if (!signal.aborted) showError(element, error, { retry: openView });
  }
}

/** Digits select views, unless the user writes text. */
function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=range], [type=checkbox], [type=radio]), textarea, select, [contenteditable]")) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) {
    linkOf(view).click();
    main.focus({ preventScroll: true });
  } else if (event.key === "t") document.getElementById("theme").click();
}

nav.replaceChildren(
  ...VIEWS.map((view, index) =>
    h("a", { href: `#/${view.name}`, title: `${view.title} (key ${index + 1})` }, view.title),
  ),
);
installThemeSwitch(document.getElementById("theme"));
addEventListener("hashchange", openView);
addEventListener("keydown", handleKey);
try {
  studio = await getJson("/api/studio");
  document.getElementById("folder").textContent = studio.folder;
  await openView();
  for (const { name } of VIEWS) import(`./views/${name}.js`).catch(() => {}); // the views open without the server, too
} catch (error) {
  showError(main, error, { retry: () => location.reload() });
}
