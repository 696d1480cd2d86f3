// One gang: why it waits, what would help, what happened when, its domains and its members.

import { listCommands } from "./commands.js";
import { h } from "./dom.js";
import { linkOf, nameOf, objectOf, quorumOf } from "./gangs.js";
import { whatIfLink } from "./whatif.js";
import { callName, callOf, capital, clock, count, expectFit, natural, phaseOf, plural, sentence, shortKey, tell, tellPast } from "./words.js";

const SECONDS_BETWEEN_READS = 5;
const MEMBERS = 200;
const DECISIONS = 10;
const VICTIMS = 20;

const MILESTONES = {
  seen: "seen for the first time", quorum: "its quorum exists", preempting: "pods are evicted for it", planned: "planned",
  steered: "first member sent to its node", atBind: "first member at its bind call", committed: "quorum at bind",
  bound: "bound", givenUp: "the plan failed", broken: "broken", preempted: "evicted for another gang",
};

export class GangPanel {
  constructor(state, map) {
    this.state = state;
    this.map = map;
    this.name = "";
    this.detail = null;
    this.seen = null;
    this.diagnosis = null; // the last one that was asked for: it costs work, so it is kept
    this.members = 10;
    this.decisions = null; // those that the extender remembers of it, the newest first, and one more than are shown
    this.decided = 0; // the number of the last one of which the stream has told
    this.mostDecisions = DECISIONS;
    this.title = h("h2", { tabindex: "-1" });
    this.object = h("p", { class: "facts" });
    this.lead = h("div", { class: "lead" });
    this.body = h("div", { class: "gang-body" });
    this.said = h("p", { class: "hidden", role: "status" });
    this.element = h("article", { class: "one-gang", "aria-label": "One gang" }, h("p", {}, h("a", { href: "#/gangs", class: "back" }, "All gangs")), this.title, this.object, this.lead, this.body, this.said);
    setInterval(() => this.name && !document.hidden && this.read("none"), SECONDS_BETWEEN_READS * 1000);
  }

  show(namespace, name) {
    const full = `${namespace}/${name}`;
    if (full === this.name) return;
    Object.assign(this, { name: full, detail: null, diagnosis: null, seen: null, members: 10, decisions: null, decided: 0, mostDecisions: DECISIONS });
    this.title.replaceChildren(h("span", { class: "muted" }, `${namespace}/`), name);
    this.object.replaceChildren();
    this.lead.replaceChildren();
    this.body.replaceChildren(h("p", { class: "empty" }, "Reading …"));
    this.render();
  }

  hide() {
    this.name = "";
    this.map.spotlight(null);
    this.map.pointAt([]);
  }

  render() {
    if (!this.name || !this.state.complete) return;
    const gang = this.state.gangByName(this.name);
    if (!gang) {
      this.body.replaceChildren(h("p", { class: "empty" }, "Serried knows no gang of this name (any more)."));
      this.map.spotlight(new Set());
      return;
    }
    replaceIfOther(this.title, nameOf(gang));
    replaceIfOther(this.object, objectOf(gang) ? ["PodGroup ", objectOf(gang)] : []);
    this.renderLead(gang);
    const newest = this.state.decisions.find((one) => one.group === this.name)?.number ?? 0;
    if (!this.decisions || newest !== this.decided) {
      this.decided = newest;
      this.readDecisions();
    }
    if (gang !== this.seen) {
      // The first time the planner looks for what would help; later only how far each domain is from holding it.
      const asked = this.seen ? "domains" : "advice";
      this.seen = gang;
      this.read(asked);
    }
  }

  renderLead(gang) {
    const phase = phaseOf(gang);
    const turn = this.state.turnOf(gang);
    const before = turn ? this.state.order.slice(0, turn - 1).slice(-3).map((number) => this.state.gangs.get(number)).filter(Boolean) : [];
    const parts = [
      h("p", { class: "gang-head" }, h("span", { class: `badge ${phase}` }, capital(phase)), whatIfLink(gang), quorumOf(gang)),
      h("div", { class: `reason ${phase}` },
        h("h3", {}, phase === "waiting" ? "Why it waits" : phase === "broken" ? "What is wrong" : "State"),
        h("p", {}, gang.reason ? h("b", {}, gang.reason) : "Serried has decided nothing yet.", " ", tell(sentence(gang.reason, this.detail?.message ?? gang.message), this.state.now()))),
    ];
    if (turn) {
      const who = before.length ? [" behind ", ...before.flatMap((one, place) => [place ? ", " : "", h("a", { href: linkOf(one) }, callOf(one))])] : [];
      parts.push(h("p", { class: "facts" }, `Number ${count(turn)} of ${count(this.state.order.length)} in the queue`, ...who, "."));
    }
    const { head } = this.state;
    if (head?.group === this.name) {
      const when = head.forecast ? ` ${capital(expectFit(head.forecast, this.state.now()))}.` : "";
      parts.push(h("p", { class: "facts" }, `Serried keeps ${plural(head.nodes, "node")}${head.domain ? ` of ${head.domain}` : ""} for this gang.${when}`));
    }
    replaceIfOther(this.lead, parts);
  }

  async read(diagnosis) {
    const name = this.name;
    const [namespace, ...rest] = name.split("/");
    const path = rest.join("/").split("/").map(encodeURIComponent).join("/");
    let detail = null;
    try {
      const answer = await fetch(`groups/${encodeURIComponent(namespace)}/${path}?diagnosis=${diagnosis}`);
      if (answer.ok) detail = await answer.json();
    } catch {
      return; // the stream says that the extender is away
    }
    if (this.name !== name || !detail) return;
    this.keepDiagnosis(detail, diagnosis);
    this.detail = detail;
    this.renderBody();
    const gang = this.state.gangByName(name);
    if (gang) this.renderLead(gang);
  }

  async readDecisions() {
    const name = this.name;
    try {
      const answer = await fetch(`decisions?group=${encodeURIComponent(name)}&limit=${this.mostDecisions + 1}`);
      if (!answer.ok || this.name !== name) return;
      this.decisions = await answer.json();
    } catch {
      return; // the stream says that the extender is away
    }
    if (this.detail) this.renderBody();
  }

  keepDiagnosis(detail, asked) {
    if (!detail.queue) this.diagnosis = null;
    else if (asked !== "none") this.diagnosis = { ...detail.diagnosis, advice: detail.diagnosis?.advice ?? this.diagnosis?.advice };
  }

  renderBody() {
    const { detail } = this;
    replaceIfOther(this.body, [
      this.adviceOf(), factsOf(detail), this.domainsOf(), forecastOf(detail, this.state.now()), preemptionOf(detail), this.membersOf(detail),
      timelineOf(detail, this.state.now()), this.historyOf(), listCommands(detail, this.said),
    ]);
    this.map.spotlight(new Set(detail.detail.flatMap((member) => [member.node, member.planned]).filter(Boolean)));
  }

  adviceOf() {
    const { advice } = this.diagnosis ?? {};
    if (!advice) return null;
    const again = h("button", { type: "button", class: "again", onclick: () => this.read("advice") }, "Look again");
    const found = advice.length
      ? h("ol", {}, advice.map((each) => h("li", {}, capital(this.callAdvised(each)))))
      : h("p", {}, this.diagnosis.complete ? "Serried found no single change that would make the gang fit." : "Serried found no such change in the allowed time.");
    return h("section", { class: "advice" }, h("div", { class: "advice-head" }, h("h3", {}, "What would make it fit"), again), found);
  }

  // An advice that names another gang calls it as people do.
  callAdvised({ text, name }) {
    const other = name && this.state.gangByName(name);
    return other ? text.replace(name, callName(name, other.owner)) : text;
  }

  // What was decided about it, the newest first.
  historyOf() {
    const told = (this.decisions ?? []).slice(0, this.mostDecisions);
    if (!told.length) return null;
    const now = this.state.now();
    const more = this.decisions.length > told.length && h("button", { type: "button", class: "more", onclick: () => { this.mostDecisions *= 10; this.readDecisions(); } }, "Show older ones");
    return section("Decisions", h("ol", { class: "decisions history" }, told.map((one) => h("li", {},
      h("time", { datetime: one.at, title: one.at }, clock(one.at, now)),
      h("div", {}, h("b", {}, one.reason), " ", tellPast(sentence(one.reason, one.text), now))))), more);
  }

  domainsOf() {
    const { domains, domainsLeftOff, key, dominant } = this.diagnosis ?? {};
    if (!domains?.length) return null;
    const pointAt = (names) => () => this.map.pointAt(names);
    const rows = domains.map((row) => h("tr", { onpointerenter: pointAt([row.domain]), onpointerleave: pointAt([]) },
      h("th", { scope: "row", class: "domain" }, row.domain || "the cluster"),
      h("td", { class: "number" }, `${count(row.slots)} of ${count(row.need)}`),
      h("td", {}, hurdlesOf(row))));
    return section("Domains",
      h("p", { class: "facts" }, dominant ? `The obstacle on most nodes: ${dominant}. ` : "", "These numbers are counted now. The reason above has those of the last try."),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Domains" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, shortKey(key || "domain")), h("th", { scope: "col", class: "number" }, "Members that fit"), h("th", { scope: "col" }, "Obstacles"))),
        h("tbody", {}, rows))),
      domainsLeftOff ? h("p", { class: "facts" }, `${count(domainsLeftOff)} more`) : null);
  }

  membersOf(detail) {
    const all = [...detail.detail].sort((a, b) => natural.compare(a.name, b.name));
    if (!all.length) return section("Members", h("p", { class: "empty" }, "No pod names this gang yet."));
    const shown = all.slice(0, this.members);
    const more = all.length > shown.length && h("button", { type: "button", class: "more", onclick: () => { this.members += MEMBERS; this.renderBody(); } }, `Show more (${count(all.length - shown.length)} left)`);
    return section(`Members (${count(all.length)})`, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Members" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Pod", "State", "Node"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, shown.map((member) => h("tr", {}, h("th", { scope: "row" }, member.name), h("td", {}, member.gates?.length ? `${member.state}: ${member.gates.join(", ")}` : member.state), h("td", {}, member.node || (member.planned ? `planned: ${member.planned}` : member.nominated ? `nominated: ${member.nominated}` : "none"))))))), more);
  }
}

const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);

function factsOf(detail) {
  const facts = [
    ["Object", detail.object ? `${detail.object.kind} ${detail.object.name} (${detail.object.apiVersion})` : `${detail.kind}, no object yet`],
    ["Asks for", detail.minCount ? `${plural(detail.minCount, "member")} together${detail.topologyKey ? ` in one ${shortKey(detail.topologyKey)}` : ""}` : "its pods one by one"],
    ["Pods", `${count(detail.members)}: ${count(detail.placed)} placed, ${count(detail.waiting)} waiting`],
    ["Priority", `${count(detail.priority)}${detail.preempts ? ", may evict lower ones" : ""}`],
  ];
  if (detail.domain) facts.push([shortKey(detail.topologyKey || "domain"), detail.domain]);
  return h("dl", { class: "facts-list" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function timelineOf(detail, now) {
  const steps = detail.timeline ?? [];
  if (!steps.length) return null;
  return section("Timeline", h("ol", { class: "timeline" }, steps.map((step) => h("li", {},
    h("time", { datetime: step.at, title: step.at }, clock(step.at, now)), h("span", {}, MILESTONES[step.milestone] ?? step.milestone)))));
}

// The text of a domain names it and its room first, which have columns of their own.
function hurdlesOf(row) {
  const [, rest] = row.text.split("; ", 2);
  return row.taken ? "another gang uses it exclusively" : rest ? row.text.slice(row.text.indexOf("; ") + 2) : "";
}

function forecastOf(detail, now) {
  const { forecast } = detail;
  if (!forecast) return null;
  const when = forecast.at ? capital(expectFit(forecast.at, now)) : "Serried cannot tell when the gang will fit";
  return section("Forecast", h("p", {}, `${when}${forecast.domain ? `, in ${forecast.domain}` : ""}.`), forecast.basis ? h("p", { class: "facts" }, capital(forecast.basis)) : null);
}

function preemptionOf(detail) {
  const found = detail.preemption;
  if (!found) return null;
  const going = detail.state === "Preempting";
  const title = going ? "Pods that are evicted" : "Pods that would be evicted";
  if (!found.victims.length) return section(title, h("p", {}, obstacleOf(found)));
  const where = found.domain ? ` in ${found.domain}` : "";
  const text = `${plural(found.victims.length, "pod")} of lower priority ${going ? "has to end" : "would have to end"}${where}:`.replace("pods of lower priority has", "pods of lower priority have");
  return section(title, h("p", {}, text), h("ul", { class: "names" }, found.victims.slice(0, VICTIMS).map((name) => h("li", {}, name))));
}

// As `serried explain` says it.
function obstacleOf(found) {
  const count = found.protected ? `${found.protected} ${found.protected === 1 ? "pod" : "pods"}: ` : "";
  const said = found.protections.length ? ` (${count}${found.protections.join("; ")})` : "";
  return `No eviction would help in ${found.domain || "the cluster"}. Obstacle: ${found.blocker}${said}.`;
}

// A reader in the middle of a table is not thrown out of it by news that says the same.
function replaceIfOther(parent, parts) {
  const made = h("div", {}, ...parts);
  if (made.innerHTML === parent.innerHTML) return;
  const opened = parent.contains(document.activeElement) ? [...parent.querySelectorAll("a, button, [tabindex]")].indexOf(document.activeElement) : -1;
  const scrolled = [...parent.querySelectorAll(".scroll")].map((each) => each.scrollTop);
  parent.replaceChildren(...made.childNodes);
  [...parent.querySelectorAll(".scroll")].forEach((each, place) => { each.scrollTop = scrolled[place] ?? 0; });
  if (opened >= 0) [...parent.querySelectorAll("a, button, [tabindex]")][opened]?.focus({ preventScroll: true });
}
