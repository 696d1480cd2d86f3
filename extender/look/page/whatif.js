// Would it fit? A form over POST /debug/whatif, which changes nothing.

import { h } from "./dom.js";
import { linkOf } from "./gangs.js";
import { callName, count, phaseOf, plural, sentence, tell } from "./words.js";

const MOST_NAMES = 200;

const OUTCOMES = {
  Fits: ["running", "Fits"],
  FitsAfterEvictions: ["planned", "Fits after evictions"],
  DoesNotFit: ["waiting", "Does not fit"],
};

const EXAMPLE = `apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  parallelism: 8
  completions: 8
  completionMode: Indexed
  template:
    spec:
      schedulerName: serried
      restartPolicy: Never
      containers:
      - name: worker
        image: registry.k8s.io/pause:3.10
        resources: {requests: {cpu: "8"}}
`;

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export class WhatIf {
  constructor(state, map) {
    this.state = state;
    this.map = map;
    this.title = h("h2", { tabindex: "-1" }, "Would it fit?");
    this.manifests = h("textarea", { id: "manifests", rows: "9", spellcheck: "false", "aria-describedby": "manifests-help" });
    this.names = h("datalist", { id: "gang-names" });
    this.inputs = {
      namespace: field("namespace", "Namespace of manifests that name none", "default"),
      group: field("group", "Or gangs that exist", "", "namespace/job/train", "gang-names"),
      drain: field("drain", "Drain these nodes", "", "node-1 node-2"),
      add: field("add", "Add nodes", "", "4*node-1: four like node-1"),
      remove: field("remove", "Leave these gangs out", "", "namespace/job/train", "gang-names"),
    };
    const { namespace, group, drain, add, remove } = this.inputs;
    this.send = h("button", { type: "submit", class: "send" }, "Would it fit?");
    this.form = h("form", { class: "whatif", onsubmit: (event) => this.ask(event) },
      h("div", { class: "field" },
        h("div", { class: "label-line" }, h("label", { for: "manifests" }, "Manifests"),
          h("button", { type: "button", class: "again", onclick: () => { this.manifests.value = EXAMPLE; } }, "Use an example")),
        this.manifests,
        h("p", { class: "facts", id: "manifests-help" }, "Serried reads Job, JobSet, LeaderWorkerSet, PodGroup, CompositePodGroup, Workload, Pod, and Lists of them, as YAML or JSON. A PriorityClass among them counts as created. Serried creates nothing.")),
      namespace.element, group.element,
      h("fieldset", {}, h("legend", {}, "If the cluster were different"), drain.element, add.element, remove.element),
      this.send);
    this.answer = h("div", { class: "answer", role: "status" });
    this.element = h("div", {}, this.title, this.form, this.names, this.answer);
  }

  // Asks about a gang that is there.
  suggest(name) {
    this.inputs.group.input.value = this.suggested = name;
    this.manifests.value = "";
    this.answer.replaceChildren();
  }

  render() {
    this.callSuggested();
    const gangs = this.state.listGangs().slice(0, MOST_NAMES);
    const names = [...new Set(gangs.map((gang) => callName(`${gang.namespace}/${gang.name}`, gang.owner)))];
    const text = names.join();
    if (this.names.dataset.text === text) return;
    this.names.dataset.text = text;
    this.names.replaceChildren(...names.map((value) => h("option", { value })));
  }

  // Once the gang that was suggested is known, it is called as people call it, unless that would be several gangs.
  callSuggested() {
    const { input } = this.inputs.group;
    const gang = input.value && input.value === this.suggested ? this.state.gangByName(input.value) : null;
    const name = gang ? callName(this.suggested, gang.owner) : "";
    if (name && this.state.findNames(name).length === 1) input.value = this.suggested = name;
  }

  hide() {
    this.map.spotlight(null);
  }

  async ask(event) {
    event.preventDefault();
    const query = new URLSearchParams({ namespace: this.inputs.namespace.input.value || "default" });
    for (const name of ["group", "drain", "add", "remove"]) {
      const gangs = name === "group" || name === "remove";
      for (const value of words(this.inputs[name].input.value)) {
        for (const one of gangs ? this.state.findNames(value) : [value]) query.append(name, one);
      }
    }
    this.send.disabled = true;
    this.answer.replaceChildren(h("p", { class: "empty" }, "Asking …"));
    try {
      const answer = await fetch(`whatif?${query}`, { method: "POST", body: this.manifests.value, headers: { "Content-Type": "application/yaml" } });
      const found = await answer.json();
      if (answer.ok) this.show(found);
      else this.refuse(typeof found.detail === "string" ? found.detail : "The request is invalid.");
    } catch {
      this.refuse("The extender did not answer.");
    }
    this.send.disabled = false;
  }

  refuse(text) {
    this.map.spotlight(null);
    this.answer.replaceChildren(objection(text));
  }

  show(found) {
    this.answer.replaceChildren(...found.refused.map(objection), ...found.groups.map((group) => this.showGroup(group)), this.describeChanges(found));
    this.map.spotlight(new Set(found.groups.flatMap((group) => Object.keys(group.nodes))));
  }

  showGroup(group) {
    const [phase, outcome] = OUTCOMES[group.outcome] ?? ["waiting", group.outcome];
    const nodes = Object.keys(group.nodes);
    const victims = group.preemption?.victims ?? [];
    const known = this.state.gangByName(`${group.namespace}/${group.name}`);
    return h("section", { class: `reason ${phase}` },
      h("p", { class: "gang-head" }, h("b", {}, known?.owner ? callName(`${known.namespace}/${known.name}`, known.owner) : group.source), h("span", { class: `badge ${phase}` }, outcome)),
      h("p", {}, group.reason ? h("b", {}, group.reason) : null, group.reason ? " " : "", tell(sentence(group.reason, group.message), this.state.now()), "."),
      nodes.length ? h("p", { class: "facts" }, `${plural(group.placed, "member")} on ${plural(nodes.length, "node")}: ${nodes.slice(0, 8).join(", ")}${nodes.length > 8 ? ` and ${count(nodes.length - 8)} more` : ""}`) : null,
      victims.length ? h("p", { class: "facts" }, `Would be evicted: ${victims.slice(0, 10).join(", ")}${victims.length > 10 ? ` and ${count(victims.length - 10)} more` : ""}`) : null);
  }

  describeChanges({ changes, skipped, workSeconds }) {
    const parts = [];
    if (changes.drained.length) parts.push(`without ${changes.drained.join(", ")} (${plural(changes.displaced, "pod")} of ${changes.drained.length === 1 ? "it" : "them"} would need another node)`);
    if (changes.added.length) parts.push(`with ${changes.added.join(", ")}`);
    if (changes.removed.length) parts.push(`without gang ${changes.removed.map((name) => callName(name, this.state.gangByName(name)?.owner)).join(", ")}`);
    return h("p", { class: "facts" }, `${parts.length ? `In a cluster ${parts.join(", ")}. ` : ""}${skipped.length ? `Left out, because these objects make no pods of gangs: ${skipped.join(", ")}. ` : ""}The answer took ${Math.max(1, Math.round(workSeconds * 1000))} ms of work.`);
  }
}

function objection(text) {
  return h("div", { class: "reason broken" }, h("p", {}, text.charAt(0).toUpperCase() + text.slice(1)));
}

function field(name, label, value, placeholder = "", list = undefined) {
  const input = h("input", { type: "text", id: `whatif-${name}`, value, placeholder, list, autocomplete: "off", spellcheck: "false" });
  return { input, element: h("div", { class: "field" }, h("label", { for: input.id }, label), input) };
}

// The link from a gang that waits to the form about it.
export function whatIfLink(gang) {
  return phaseOf(gang) === "waiting" ? h("a", { href: linkOf(gang).replace("#/gangs/", "#/whatif/") }, "What if …") : null;
}
