import { h } from "../lib/dom.js";

export function mount(element) {
  element.append(h("h1", {}, "runs"));
}
