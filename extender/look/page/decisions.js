// The decision log, the newest first, with a filter.

import { arrange, h } from "./dom.js";
import { callName, clock, count, sentence, tellPast } from "./words.js";

const PAGE = 100;

export class DecisionLog {
  constructor(state) {
    this.state = state;
    this.most = PAGE;
    this.rows = new Map();
    this.title = h("h2", { class: "hidden", tabindex: "-1" }, "Decisions");
    this.search = h("input", { type: "search", id: "decision-search", placeholder: "Gang, words or id", "aria-label": "Filter decisions", autocomplete: "off", oninput: () => this.choose(PAGE) });
    this.reason = h("select", { "aria-label": "Reason", onchange: () => this.choose(PAGE) });
    this.sum = h("p", { class: "facts", role: "status" });
    this.list = h("ol", { class: "decisions" });
    this.more = h("button", { type: "button", class: "more", onclick: () => this.choose(this.most + 5 * PAGE) }, "Show more");
    this.element = h("div", {}, this.title, h("div", { class: "tools" }, this.search, this.reason), this.sum, this.list, this.more);
  }

  choose(most) {
    this.most = most;
    this.render();
  }

  render() {
    const all = this.state.decisions;
    this.renderReasons(all);
    const text = this.search.value.trim().toLowerCase();
    const reason = this.reason.value;
    const found = all.filter((one) => (!reason || one.reason === reason) && (!text || `${one.group} ${one.owner} ${one.reason} ${one.text} ${one.id}`.toLowerCase().includes(text)));
    const sum = `${count(found.length)} of the last ${count(all.length)} decisions`;
    if (this.sum.textContent !== sum) this.sum.textContent = sum;
    const shown = found.slice(0, this.most);
    arrange(this.list, shown.map((one) => this.rowOf(one)));
    this.more.hidden = found.length <= shown.length;
    const kept = new Set(all);
    for (const one of [...this.rows.keys()]) if (!kept.has(one)) this.rows.delete(one);
  }

  renderReasons(all) {
    const reasons = [...new Set(all.map((one) => one.reason))].sort();
    const known = [...this.reason.options].slice(1).map((option) => option.value);
    if (this.reason.options.length && reasons.join() === known.join()) return;
    const chosen = this.reason.value;
    if (chosen && !reasons.includes(chosen)) reasons.push(chosen);
    this.reason.replaceChildren(h("option", { value: "" }, "Every reason"), ...reasons.map((reason) => h("option", { value: reason }, reason)));
    this.reason.value = chosen;
  }

  rowOf(one) {
    if (!this.rows.has(one)) {
      const [namespace, ...rest] = one.group.split("/");
      const href = `#/gangs/${encodeURIComponent(namespace)}/${encodeURIComponent(rest.join("/"))}`;
      this.rows.set(one, h("li", {},
        h("time", { datetime: one.at, title: one.at }, clock(one.at, this.state.now())),
        h("div", {}, h("a", { href, title: one.owner ? one.group : null }, callName(one.group, one.owner)), " ", h("b", {}, one.reason), " ", h("span", {}, tellPast(sentence(one.reason, one.text), this.state.now())), one.id ? h("span", { class: "id", title: "The log has the same decision, with this id" }, ` ${one.id}`) : null)));
    }
    return this.rows.get(one);
  }
}
