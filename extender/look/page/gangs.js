// The list of gangs: who waits and why, in the order of the queue.

import { arrange, h } from "./dom.js";
import { callName, callOf, capital, count, expectFit, phaseOf, plural, podGroupOf, secondsSince, sentence, shortKey, span, tell } from "./words.js";

const PAGE = 60;
const PHASES = ["waiting", "broken", "planned", "running"];

const SINCE = { waiting: (time) => `waits ${time}`, broken: (time) => `broken for ${time}`, planned: (time) => `waits ${time}`, running: (time) => `seen running ${time} ago` };

export const linkOf = (gang) => `#/gangs/${encodeURIComponent(gang.namespace)}/${encodeURIComponent(gang.name)}`;

// The name of a gang, and how its PodGroup is called, which kubectl asks for.
export const nameOf = (gang) => [h("span", { class: "muted" }, `${gang.namespace}/`), h("wbr"), callOf(gang)];
export const objectOf = (gang) => (podGroupOf(gang) ? h("span", { class: "object", title: "Its PodGroup" }, podGroupOf(gang)) : null);

export class GangList {
  constructor(state) {
    this.state = state;
    this.phase = "";
    this.text = "";
    this.most = PAGE;
    this.rows = new Map();
    this.title = h("h2", { class: "hidden", tabindex: "-1" }, "Gangs");
    this.search = h("input", {
      type: "search", id: "gang-search", placeholder: "Name, namespace or reason", "aria-label": "Filter gangs", autocomplete: "off",
      oninput: () => this.choose({ text: this.search.value.trim().toLowerCase() }),
      onkeydown: (event) => this.goToFirst(event),
    });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Show" });
    this.queueHead = h("p", { class: "queue-head", hidden: true });
    this.list = h("ol", { class: "gangs", onkeydown: (event) => this.walk(event) });
    this.none = h("p", { class: "empty", hidden: true });
    this.more = h("button", { type: "button", class: "more", onclick: () => this.choose({ most: this.most + 10 * PAGE }) });
    this.element = h("div", {}, this.title, h("div", { class: "tools" }, this.search, this.chips), this.queueHead, this.list, this.none, this.more);
  }

  choose(what) {
    Object.assign(this, { most: PAGE }, what);
    this.render();
  }

  render() {
    const all = this.state.listGangs();
    const words = (gang) => `${gang.namespace}/${gang.name} ${gang.namespace}/${gang.owner} ${gang.reason} ${phaseOf(gang)}`.toLowerCase();
    const found = this.text ? all.filter((gang) => words(gang).includes(this.text)) : all;
    this.renderChips(found);
    this.renderHead();
    const chosen = this.phase ? found.filter((gang) => phaseOf(gang) === this.phase) : sortByPhase(found);
    const shown = chosen.slice(0, this.most);
    const rows = shown.map((gang) => this.rowOf(gang));
    arrange(this.list, rows);
    const kept = new Set(shown.map((gang) => gang.number));
    for (const number of [...this.rows.keys()]) if (!kept.has(number)) this.rows.delete(number);
    this.none.hidden = shown.length > 0;
    this.none.textContent = all.length ? "No gang matches." : "There is no gang yet. Apply a Job of two or more pods with schedulerName: serried.";
    const left = chosen.length - shown.length + (this.phase || this.text ? 0 : this.state.gangsLeftOff);
    this.more.hidden = chosen.length <= shown.length;
    this.more.textContent = `Show more (${count(left)} left)`;
  }

  renderChips(found) {
    const sums = Object.fromEntries(PHASES.map((phase) => [phase, 0]));
    for (const gang of found) sums[phaseOf(gang)] += 1;
    const chips = [["", "All", found.length], ...PHASES.map((phase) => [phase, capital(phase), sums[phase]])];
    const wanted = chips.filter(([phase, , sum]) => sum || phase === this.phase || phase !== "broken");
    const made = wanted.map(([phase, label, sum]) => {
      const known = [...this.chips.children].find((chip) => chip.dataset.phase === phase);
      const chip = known ?? h("button", { type: "button", "data-phase": phase, onclick: () => this.choose({ phase }) }, h("span", {}, label), " ", h("b"));
      chip.setAttribute("aria-pressed", String(phase === this.phase));
      chip.lastChild.textContent = count(sum);
      return chip;
    });
    arrange(this.chips, made);
  }

  renderHead() {
    const { head } = this.state;
    this.queueHead.hidden = !head;
    if (!head) return;
    const gang = this.state.gangByName(head.group);
    const where = head.domain ? `${plural(head.nodes, "node")} of ${head.domain}` : plural(head.nodes, "node");
    const when = head.forecast ? `. ${capital(expectFit(head.forecast, this.state.now()))}` : ". Serried cannot tell when the gang will fit";
    const name = gang ? h("a", { href: linkOf(gang) }, callName(head.group, gang.owner)) : head.group;
    this.queueHead.replaceChildren(h("span", { class: "key kept" }), `Serried keeps ${where} for `, name, when, ".");
  }

  rowOf(gang) {
    const turn = this.state.turnOf(gang);
    const known = this.rows.get(gang.number);
    if (known && known.gang === gang && known.turn === turn) {
      known.age.textContent = this.ageOf(gang);
      const said = this.sayOf(gang);
      if (known.said.textContent !== said) known.said.textContent = said;
      return known.element;
    }
    const made = this.makeRow(gang, turn);
    if (known && document.activeElement && known.element.contains(document.activeElement)) {
      queueMicrotask(() => made.element.querySelector("a").focus({ preventScroll: true }));
    }
    this.rows.set(gang.number, { gang, turn, ...made });
    return made.element;
  }

  makeRow(gang, turn) {
    const phase = phaseOf(gang);
    const age = h("span", {}, this.ageOf(gang));
    const said = h("span", {}, this.sayOf(gang));
    const facts = [age, gang.priority ? ` · priority ${count(gang.priority)}` : "", gang.key ? ` · one ${shortKey(gang.key)}` : "", gang.domain ? ` · in ${gang.domain}` : ""];
    const element = h(
      "li",
      { class: `gang ${phase}` },
      h("div", { class: "gang-head" },
        h("span", { class: "turn", title: turn ? `number ${turn} in the queue` : "" }, turn ? [h("span", { class: "hidden" }, "In the queue number "), `#${turn}`] : ""),
        h("a", { href: linkOf(gang) }, nameOf(gang)),
        h("span", { class: `badge ${phase}` }, capital(phase)),
        quorumOf(gang)),
      phase === "running" ? null : h("p", { class: "why" }, gang.reason ? h("b", {}, gang.reason) : null, gang.reason ? " " : "", said),
      h("p", { class: "facts" }, ...facts, objectOf(gang) ? [" · ", objectOf(gang)] : ""),
    );
    return { element, age, said };
  }

  ageOf(gang) {
    return SINCE[phaseOf(gang)](span(secondsSince(gang.since, this.state.now())));
  }

  sayOf(gang) {
    return tell(sentence(gang.reason, gang.message), this.state.now());
  }

  // From the filter Down goes to the first gang, and Enter opens it.
  goToFirst(event) {
    const first = this.list.querySelector("li .gang-head a");
    if (!first || event.isComposing || !["ArrowDown", "Enter"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Enter") first.click();
    else first.focus();
  }

  // Up and down go from gang to gang.
  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...this.list.querySelectorAll("li .gang-head a")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function sortByPhase(gangs) {
  const rank = { broken: 0, waiting: 0, planned: 1, running: 2 };
  return gangs.map((gang, place) => [rank[phaseOf(gang)], place, gang]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((each) => each[2]);
}

// How many members run, of how many that must.
export function quorumOf(gang) {
  const need = gang.quorum || gang.members;
  const words = gang.quorum ? `${count(gang.placed)} of ${count(need)}` : count(gang.placed);
  const share = need ? Math.min(1, gang.placed / need) : 0;
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
  bar.firstChild.style.width = `${Math.round(share * 100)}%`;
  return h("span", { class: "quorum" }, bar, h("span", {}, words, h("span", { class: "hidden" }, " members placed")));
}
