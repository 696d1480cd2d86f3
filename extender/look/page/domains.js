// The map as a table, for who does not look at pictures.

import { h } from "./dom.js";
import { CORDONED, KEPT_FOR_HEAD } from "./map.js";
import { count, natural, shortKey } from "./words.js";

export function domainTable(state) {
  const sums = new Map();
  for (const node of state.nodes.values()) {
    const sum = sums.get(node.place) ?? { nodes: 0, used: 0, planned: 0, kept: 0, cordoned: 0 };
    sum.nodes += 1;
    sum.used += node.used;
    sum.planned += node.planned;
    sum.kept += node.marks & KEPT_FOR_HEAD ? 1 : 0;
    sum.cordoned += node.marks & CORDONED ? 1 : 0;
    sums.set(node.place, sum);
  }
  const rows = [...sums].map(([place, sum]) => ({ path: state.places.get(place) ?? [], ...sum }));
  rows.sort((a, b) => natural.compare(a.path.join("/"), b.path.join("/")));
  const titles = state.levels.length ? state.levels.map(shortKey) : ["cluster"];
  const numbers = ["nodes", "used", "planned", "kept", "cordoned"];
  return h("table", {},
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)), numbers.map((title) => h("th", { scope: "col", class: "number" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      titles.map((_, depth) => h("th", { scope: "row" }, row.path[depth] || "none")),
      [count(row.nodes), `${Math.round(row.used / row.nodes)} %`, `${Math.round(row.planned / row.nodes)} %`, count(row.kept), count(row.cordoned)].map((text) => h("td", { class: "number" }, text))))));
}
