// The page: one state, and the views of it.

import { DecisionLog } from "./decisions.js";
import { domainTable } from "./domains.js";
import { h } from "./dom.js";
import { GangPanel } from "./gang.js";
import { GangList } from "./gangs.js";
import { NodeMap } from "./map.js";
import { showNode } from "./nodecard.js";
import { State } from "./state.js";
import { followStream } from "./stream.js";
import { WhatIf } from "./whatif.js";
import { count, phaseOf, plural, shortKey } from "./words.js";

const SECONDS_BETWEEN_CLOCKS = 10;

const LINKS = {
  connecting: "connecting",
  live: "live",
  refused: "refused, trying again",
  resting: "resting",
};

const find = (id) => document.getElementById(id);
const state = new State();
const view = find("view");
const map = new NodeMap(find("canvas"), find("tip"), find("map-said"), state, openNode);
const views = { gangs: new GangList(state), gang: new GangPanel(state, map), decisions: new DecisionLog(state), whatif: new WhatIf(state, map) };
let shown = null;

// --- which view --------------------------------------------------------------------------------------------------

function route() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  const [, name = "gangs", namespace, ...rest] = location.hash.split("/").map(decodeURIComponent);
  const one = name === "gangs" && namespace;
  const next = one ? views.gang : views[name] ?? views.gangs;
  const before = shown;
  if (before !== next) before?.hide?.();
  if (one) views.gang.show(namespace, rest.join("/"));
  else if (next === views.whatif && namespace) views.whatif.suggest(`${namespace}/${rest.join("/")}`);
  for (const tab of ["gangs", "decisions", "whatif"]) {
    const here = next === views[tab] || (one && tab === "gangs");
    if (here) find(`tab-${tab}`).setAttribute("aria-current", "page");
    else find(`tab-${tab}`).removeAttribute("aria-current");
  }
  shown = next;
  if (before !== next) view.replaceChildren(next.element);
  if (state.complete) next.render();
  if (before && (before !== next || one)) next.title.focus({ preventScroll: innerWidth > 900 });
}

// --- what changes ------------------------------------------------------------------------------------------------

function renderSums() {
  const phases = { waiting: 0, broken: 0, planned: 0, running: 0 };
  for (const gang of state.gangs.values()) phases[phaseOf(gang)] += 1;
  let used = 0;
  for (const node of state.nodes.values()) used += node.used + node.planned;
  const full = state.nodes.size ? Math.round(used / state.nodes.size) : 0;
  const sums = [["nodes", count(state.nodes.size)], ["full", `${full} %`], ["waiting", count(phases.waiting)], ["planned", count(phases.planned)], ["running", count(phases.running)]];
  if (phases.broken) sums.splice(2, 0, ["broken", count(phases.broken)]);
  const text = sums.map((pair) => pair.join()).join();
  if (find("sums").dataset.text === text) return;
  find("sums").dataset.text = text;
  find("sums").replaceChildren(...sums.map(([name, value]) => h("div", { class: name }, h("dt", {}, name), h("dd", {}, value))));
  document.title = `${plural(phases.waiting + phases.broken, "gang")} waiting · Serried`;
}

function renderNotice() {
  const { synced, plans, obstacle } = state.extender;
  const text = obstacle ? `Nothing is planned: ${obstacle}.` : !synced ? "The extender still reads the cluster." : plans ? "" : "This extender does not lead: another extender plans.";
  const notice = find("notice");
  if (notice.textContent !== text) notice.textContent = text;
  notice.hidden = !text;
}

function renderCaption() {
  const levels = state.levels.map(shortKey).join(" › ");
  find("map-caption").textContent = [levels, state.apiLevel && `${state.apiLevel} API`, state.version && `version ${state.version}`].filter(Boolean).join(" · ");
  find("canvas").setAttribute("aria-label", `Map of ${plural(state.nodes.size, "node")}`);
}

function renderDomains() {
  const details = find("domains");
  if (!details.open) return;
  const box = details.querySelector(".scroll");
  const top = box.scrollTop;
  box.replaceChildren(domainTable(state));
  box.scrollTop = top;
}

state.addEventListener("change", (event) => {
  map.take(event.detail);
  renderSums();
  renderNotice();
  renderCaption();
  renderDomains();
  shown?.render();
  document.body.dataset.ready = "true";
});

// --- a node ------------------------------------------------------------------------------------------------------

function openNode(node) {
  const card = find("node-card");
  const close = () => {
    card.hidden = true;
    find("canvas").focus({ preventScroll: true });
  };
  showNode(card, node, map.pathOf(node), close);
}

// --- the begin ---------------------------------------------------------------------------------------------------

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
document.addEventListener("keydown", (event) => {
  const search = view.querySelector("input[type=search]");
  if (event.key !== "/" || !search || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName)) return;
  event.preventDefault();
  search.focus();
});
find("domains").addEventListener("toggle", renderDomains);
addEventListener("hashchange", route);
setInterval(() => state.complete && shown?.render(), SECONDS_BETWEEN_CLOCKS * 1000);
route();
followStream("stream", state, (how) => {
  find("link").dataset.state = how;
  if (find("link").textContent !== LINKS[how]) find("link").textContent = LINKS[how];
});
