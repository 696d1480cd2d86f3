// The state as the stream tells it: first the whole, then what changes.

import { callOf, natural } from "./words.js";

const KEPT_DECISIONS = 1000;

export class State extends EventTarget {
  constructor() {
    super();
    this.clear();
  }

  clear() {
    this.columns = {};
    this.places = new Map();
    this.nodes = new Map();
    this.gangs = new Map();
    this.decisions = [];
    this.order = [];
    this.levels = [];
    this.head = null;
    this.extender = {};
    this.gangsLeftOff = 0;
    this.version = "";
    this.apiLevel = "";
    this.complete = false;
    this.ahead = 0; // how far the extender's clock is ahead of this browser's, in seconds
  }

  now() {
    return Date.now() / 1000 + this.ahead;
  }

  gangByName(name) {
    for (const gang of this.gangs.values()) if (`${gang.namespace}/${gang.name}` === name) return gang;
    return null;
  }

  // The gangs in the order in which people want them: the queue first, then who starts, waits otherwise, and runs.
  listGangs() {
    const turn = new Map(this.order.map((number, place) => [number, place]));
    const key = (gang) => (turn.has(gang.number) ? turn.get(gang.number) : Infinity);
    return [...this.gangs.values()].sort(
      (a, b) => key(a) - key(b) || natural.compare(a.namespace, b.namespace) || natural.compare(callOf(a), callOf(b)) || natural.compare(a.name, b.name),
    );
  }

  // The gangs that somebody means who writes namespace/name, or the name that people made: namespace/job/train.
  findNames(text) {
    const found = [...this.gangs.values()].filter((gang) => text === `${gang.namespace}/${gang.owner}`);
    return found.length ? found.map((gang) => `${gang.namespace}/${gang.name}`) : [text];
  }

  turnOf(gang) {
    const place = this.order.indexOf(gang.number);
    return place < 0 ? null : place + 1;
  }

  apply(message) {
    if (message.reset) {
      this.clear();
      this.columns = message.columns;
    }
    const changed = { nodes: new Set(), gangs: new Set(), layout: Boolean(message.reset) };
    if (message.now) this.ahead = message.now - Date.now() / 1000;
    for (const name of ["order", "head", "levels", "extender", "gangsLeftOff", "version", "apiLevel"]) {
      if (name in message) this[name] = message[name];
    }
    for (const [number, values] of message.places ?? []) this.places.set(number, values);
    for (const row of message.nodes ?? []) this.putNode(this.read("nodes", row), changed);
    for (const number of message.nodesGone ?? []) changed.layout = this.nodes.delete(number) || changed.layout;
    for (const row of message.gangs ?? []) {
      const gang = this.read("gangs", row);
      this.gangs.set(gang.number, gang);
      changed.gangs.add(gang.number);
    }
    for (const number of message.gangsGone ?? []) this.gangs.delete(number);
    if (message.decisions?.length) {
      // What is decided while the whole is being told is told twice: in the whole, and as news.
      const newest = this.decisions[0]?.number ?? 0;
      const fresh = message.decisions.map((row) => this.read("decisions", row)).filter((row) => row.number > newest).reverse();
      this.decisions = [...fresh, ...this.decisions].slice(0, KEPT_DECISIONS);
    }
    if ("levels" in message) changed.layout = true;
    if (message.complete) {
      this.complete = true;
      changed.layout = true;
    }
    if (this.complete) this.dispatchEvent(new CustomEvent("change", { detail: changed }));
  }

  putNode(node, changed) {
    const before = this.nodes.get(node.number);
    this.nodes.set(node.number, node);
    changed.nodes.add(node.number);
    if (!before || before.place !== node.place || before.name !== node.name) changed.layout = true;
  }

  read(table, row) {
    return Object.fromEntries(this.columns[table].map((name, place) => [name, row[place]]));
  }
}
