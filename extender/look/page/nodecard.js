// One node in full, under the map.

import { h } from "./dom.js";
import { describeNode } from "./map.js";
import { amount } from "./words.js";

export async function showNode(card, node, path, close) {
  let found = null;
  try {
    const answer = await fetch(`nodes?limit=1&prefix=${encodeURIComponent(node.name)}`);
    if (answer.ok) [found] = await answer.json();
  } catch {
    return; // the stream says that the extender is away
  }
  const words = describeNode(node, path);
  const shut = h("button", { type: "button", class: "close", "aria-label": "Close the node", onclick: close }, "×");
  const head = h("div", { class: "node-head" }, h("h3", {}, words.name), h("span", { class: "muted" }, words.where), shut);
  card.replaceChildren(head, h("p", { class: "facts" }, words.state), ...(found ? [table(found)] : []));
  card.hidden = false;
  card.onkeydown = (event) => event.key === "Escape" && close();
  card.focus({ preventScroll: true });
}

function table(found) {
  const names = Object.keys(found.allocatable).filter((name) => found.allocatable[name] > 0).sort();
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Resource"), h("th", { scope: "col", class: "number" }, "Used"), h("th", { scope: "col", class: "number" }, "Allocatable"))),
    h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, amount(name, found.used[name] ?? 0)), h("td", { class: "number" }, amount(name, found.allocatable[name]))))));
}
