// The map: one canvas, of which only cells that changed are drawn anew.

import { layOut } from "./layout.js";
import { plural } from "./words.js";

export const CORDONED = 1;
export const KEPT_FOR_HEAD = 2;
export const KEPT_FOR_REPLACEMENT = 4;
export const ENDING = 8;

const MARKS = [
  [CORDONED, "cordoned"],
  [KEPT_FOR_HEAD, "kept for the first gang in the queue"],
  [KEPT_FOR_REPLACEMENT, "a slot is kept for a replacement"],
  [ENDING, "evicted pods end here"],
];

const SHADED_BELOW = 8;

const heightOf = (percent, size) => (percent ? Math.max(1, Math.round((percent / 100) * size)) : 0);

export function describeNode(node, path) {
  const parts = [`${node.used} % used`];
  if (node.planned) parts.push(`${node.planned} % planned`);
  for (const [bit, words] of MARKS) if (node.marks & bit) parts.push(words);
  return { name: node.name, where: path.filter(Boolean).join(" / "), state: parts.join(", ") };
}

export class NodeMap {
  constructor(canvas, tip, said, state, open) {
    Object.assign(this, { canvas, tip, said, state, open });
    this.pen = canvas.getContext("2d");
    this.plan = null;
    this.spot = null; // the names of the nodes of the gang that is shown, or null
    this.domains = new Set(); // what is pointed at: names of domains
    this.cursor = null; // the number of the node under the keyboard
    this.stale = new Set();
    this.asked = false;
    this.readColours();
    new ResizeObserver(() => this.arrange()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.arrange());
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.hideTip());
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("focus", () => this.setCursor(this.cursor ?? this.firstNode()));
    canvas.addEventListener("blur", () => this.hideTip());
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--map-${name}`).trim();
    this.colours = Object.fromEntries(
      ["empty", "used", "planned", "kept", "ending", "line", "box", "text", "muted", "ring", "panel", "stripe"].map((name) => [name, read(name)]),
    );
    this.stripes = this.makeStripes();
  }

  // Stripes tell plans from what is used also without colours.
  makeStripes() {
    const tile = Object.assign(document.createElement("canvas"), { width: 5, height: 5 });
    const pen = tile.getContext("2d");
    pen.fillStyle = this.colours.planned;
    pen.fillRect(0, 0, 5, 5);
    pen.strokeStyle = this.colours.stripe;
    pen.lineWidth = 1.4;
    for (const shift of [-5, 0, 5]) {
      pen.moveTo(shift, 5);
      pen.lineTo(shift + 5, 0);
    }
    pen.stroke();
    return this.pen.createPattern(tile, "repeat");
  }

  // --- what changes ---------------------------------------------------------------------------------------------

  take(changed) {
    if (changed.layout) this.arrange();
    else this.refresh(changed.nodes);
  }

  spotlight(names) {
    const same = (names === null) === (this.spot === null) && (!names || (names.size === this.spot.size && [...names].every((n) => this.spot.has(n))));
    if (same) return;
    this.spot = names;
    this.drawAll();
  }

  pointAt(domains) {
    this.domains = new Set(domains);
    this.drawAll();
  }

  refresh(numbers) {
    for (const number of numbers) this.stale.add(number);
    if (this.asked || !this.stale.size) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.spot || this.domains.size) this.drawAll();
      else for (const number of this.stale) this.drawCell(number);
      this.stale.clear();
    });
  }

  arrange() {
    this.readColours();
    const width = Math.floor(this.canvas.parentElement.clientWidth);
    if (!width || !this.state.complete) return;
    const nodes = [...this.state.nodes.values()].map((node) => ({ number: node.number, name: node.name, values: this.pathOf(node) }));
    const most = innerWidth > 900 ? Math.max(320, Math.min(innerHeight - 330, 760)) : Math.max(240, innerHeight / 2 - 8);
    this.plan = layOut(nodes, this.state.levels, width, most);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.plan.height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.plan.height}px`;
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawAll();
  }

  pathOf(node) {
    return this.state.places.get(node.place) ?? [];
  }

  // --- drawing --------------------------------------------------------------------------------------------------

  drawAll() {
    if (!this.plan) return;
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (const box of this.plan.boxes) this.drawBox(box);
    for (const number of this.plan.cells.keys()) this.drawCell(number);
  }

  drawBox(box) {
    const { pen, colours, plan } = this;
    const pointed = box.names.some((name) => this.domains.has(name)) || this.domains.has(box.path.join("/"));
    if (!box.leaf) {
      pen.beginPath();
      pen.roundRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, 6);
      pen.fillStyle = colours.box;
      pen.fill();
      pen.strokeStyle = colours.line;
      pen.lineWidth = 1;
      pen.stroke();
    }
    const inset = box.leaf ? 0 : plan.cell >= 10 ? 10 : 6;
    const size = plan.cell >= 8 ? 11 : 10;
    pen.textBaseline = "alphabetic";
    pen.font = `${box.leaf ? 500 : 600} ${size}px system-ui, sans-serif`;
    pen.fillStyle = box.leaf && !pointed ? colours.muted : colours.text;
    const names = box.names.map((name) => name || "no label");
    pen.fillText(this.fit(names, box.width - 2 * inset), box.x + inset, box.y + (box.leaf ? size : size + 6));
    if (pointed) {
      pen.strokeStyle = colours.ring;
      pen.lineWidth = 2;
      pen.strokeRect(box.x - 4, box.y - 3, box.width + 8, box.height + 4);
    }
  }

  // A label in the width that there is: its end says more than its begin.
  fit(names, width) {
    const last = names.at(-1);
    const labels = [names.join(" / "), last, last.slice(last.lastIndexOf("-") + 1)];
    return labels.find((label) => this.pen.measureText(label).width <= width) ?? "";
  }

  drawCell(number) {
    const at = this.plan?.cells.get(number);
    const node = this.state.nodes.get(number);
    if (!at || !node) return;
    const { pen, colours } = this;
    const size = this.plan.cell;
    const round = size >= 10 ? 3 : size >= 6 ? 1 : 0;
    const mine = this.spot?.has(node.name);
    pen.fillStyle = colours.panel;
    pen.clearRect(at.x - 1, at.y - 1, size + 2, size + 2);
    if (this.plan.leaves[at.leaf].depth > 1) {
      pen.fillStyle = colours.box;
      pen.fillRect(at.x - 1, at.y - 1, size + 2, size + 2);
    }
    pen.save();
    pen.globalAlpha = this.spot?.size && !mine ? 0.35 : 1;
    pen.beginPath();
    pen.roundRect(at.x, at.y, size, size, round);
    pen.clip();
    this.fillCell(node, at, size);
    pen.restore();
    pen.globalAlpha = this.spot?.size && !mine ? 0.35 : 1;
    if (node.marks & KEPT_FOR_HEAD) this.outline(at, size, round, colours.kept, size >= 10 ? 2 : 1);
    pen.globalAlpha = 1;
    if (mine) this.outline(at, size, round, colours.ring, size >= 10 ? 2 : 1.5);
    if (number === this.cursor && document.activeElement === this.canvas) this.outline(at, size, round, colours.text, 2);
  }

  fillCell(node, at, size) {
    const { pen, colours } = this;
    pen.fillStyle = colours.empty;
    pen.fillRect(at.x, at.y, size, size);
    if (size < SHADED_BELOW) this.shade(node, at, size);
    else this.fillUp(node, at, size);
    if (node.marks & CORDONED) this.strike(at, size);
    if (node.marks & KEPT_FOR_REPLACEMENT) this.dot(at, size, colours.kept);
    if (node.marks & ENDING) this.dot(at, size, colours.ending);
  }

  fillUp(node, at, size) {
    const { pen, colours } = this;
    const used = heightOf(node.used, size);
    const planned = heightOf(node.planned, size);
    pen.fillStyle = colours.used;
    pen.fillRect(at.x, at.y + size - used, size, used);
    pen.fillStyle = size >= 10 ? this.stripes : colours.planned;
    pen.fillRect(at.x, at.y + size - used - planned, size, planned);
  }

  // Where a cell is too small for a level, it is the darker the fuller.
  shade(node, at, size) {
    const { pen, colours } = this;
    const before = pen.globalAlpha;
    pen.globalAlpha = before * ((node.used + node.planned) / 100);
    pen.fillStyle = node.planned ? colours.planned : colours.used;
    pen.fillRect(at.x, at.y, size, size);
    pen.globalAlpha = before;
  }

  strike(at, size) {
    const { pen } = this;
    pen.strokeStyle = this.colours.text;
    pen.lineWidth = size >= 10 ? 1.5 : 1;
    pen.beginPath();
    pen.moveTo(at.x, at.y + size);
    pen.lineTo(at.x + size, at.y);
    pen.stroke();
  }

  dot(at, size, colour) {
    const { pen } = this;
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(at.x + size / 2, at.y + size / 2, Math.max(1.5, size / 5), 0, 2 * Math.PI);
    pen.fill();
    pen.strokeStyle = this.colours.panel;
    pen.lineWidth = size >= 10 ? 1.5 : 0.5;
    pen.stroke();
  }

  outline(at, size, round, colour, width) {
    const { pen } = this;
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    pen.roundRect(at.x + width / 2 - 1, at.y + width / 2 - 1, size + 2 - width, size + 2 - width, round);
    pen.stroke();
  }

  // --- pointing -------------------------------------------------------------------------------------------------

  nodeAt(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    if (!this.plan) return null;
    const leaf = this.plan.leaves.find((box) => x >= box.x && x < box.x + box.width + 3 && y >= box.y && y < box.y + box.height);
    const hit = leaf?.nodes.find((number) => {
      const at = this.plan.cells.get(number);
      return x >= at.x && x < at.x + this.plan.cell + 3 && y >= at.y && y < at.y + this.plan.cell + 3;
    });
    return hit ?? null;
  }

  point(event) {
    const number = this.nodeAt(event);
    this.canvas.style.cursor = number === null ? "default" : "pointer";
    if (number === null) this.hideTip();
    else this.showTip(number);
  }

  click(event) {
    const number = this.nodeAt(event);
    if (number !== null) {
      this.setCursor(number);
      this.open(this.state.nodes.get(number));
    }
  }

  showTip(number) {
    const [node, at] = [this.state.nodes.get(number), this.plan.cells.get(number)];
    if (!node || !at) return;
    const words = describeNode(node, this.pathOf(node));
    this.tip.replaceChildren(Object.assign(document.createElement("strong"), { textContent: words.name }), ` ${words.where}`, document.createElement("br"), words.state);
    this.tip.hidden = false;
    const left = Math.max(0, Math.min(at.x - 12, this.canvas.clientWidth - this.tip.offsetWidth));
    const below = at.y + this.plan.cell + 8;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${below}px`;
  }

  hideTip() {
    this.tip.hidden = true;
    if (this.cursor !== null) this.drawCell(this.cursor);
  }

  // --- keys -----------------------------------------------------------------------------------------------------

  firstNode() {
    return this.plan?.leaves[0]?.nodes[0] ?? null;
  }

  setCursor(number) {
    const before = this.cursor;
    this.cursor = number;
    if (before !== null) this.drawCell(before);
    if (number === null) return;
    this.drawCell(number);
    this.showTip(number);
    const node = this.state.nodes.get(number);
    const leaf = this.plan.leaves[this.plan.cells.get(number).leaf];
    const words = describeNode(node, this.pathOf(node));
    this.said.textContent = `${words.name}, ${words.where || "no domain"}, one of ${plural(leaf.nodes.length, "node")}: ${words.state}`;
  }

  press(event) {
    if (this.cursor === null || !this.plan?.cells.has(this.cursor)) this.cursor = this.firstNode();
    if (this.cursor === null) return;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key in moves) this.move(...moves[event.key]);
    else if (event.key === "Enter") this.open(this.state.nodes.get(this.cursor));
    else if (event.key === "Escape") this.hideTip();
    else return;
    event.preventDefault();
  }

  move(domains, nodes) {
    const at = this.plan.cells.get(this.cursor);
    const { leaves } = this.plan;
    const leaf = leaves[Math.max(0, Math.min(leaves.length - 1, at.leaf + domains))];
    if (domains) return this.setCursor(leaf.nodes[0]);
    const next = leaf.nodes[at.turn + nodes];
    if (next !== undefined) return this.setCursor(next);
    const beside = leaves[at.leaf + nodes];
    if (beside) this.setCursor(nodes > 0 ? beside.nodes[0] : beside.nodes.at(-1));
  }
}
