// Where each node is drawn: domains as boxes in boxes, the narrowest with their nodes as cells. Pure.

import { natural } from "./words.js";

const CELLS = [72, 64, 56, 50, 44, 39, 34, 30, 28, 26, 24, 22, 20, 18, 15, 12, 10, 8, 6, 5, 4];
const SLIMNESS = [0.35, 0.6, 1, 1.6, 2.5, 4]; // how much wider than high a domain of nodes may be; the best is taken
const AS_WIDE_AS_MAP = [0]; // of the only domain

// nodes: [{number, name, values}], values by level. Answers {cell, height, boxes, cells, leaves}.
export function layOut(nodes, levels, width, maxHeight) {
  const tree = grow(nodes, levels.length, []);
  const slims = tree.children.length === 1 && !tree.children[0].children.length ? AS_WIDE_AS_MAP : SLIMNESS;
  for (const cell of CELLS) {
    const plans = slims.map((slim) => measure(tree, width, cell, 0, slim)).filter((plan) => plan.width <= width + 1);
    const best = plans.sort((a, b) => a.height - b.height)[0];
    if (best && best.height <= maxHeight) return place(best, cell);
  }
  return place(measure(tree, width, CELLS.at(-1), 0, slims === SLIMNESS ? 1 : 0), CELLS.at(-1));
}

// A domain that is the only one of a wider one is drawn with it as one box, which has the names of both.
function grow(nodes, levels, path, names = []) {
  if (path.length === levels) {
    return { path, names, nodes: [...nodes].sort((a, b) => natural.compare(a.name, b.name)), children: [] };
  }
  const groups = new Map();
  for (const node of nodes) {
    const value = node.values[path.length];
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(node);
  }
  const values = [...groups.keys()].sort(natural.compare);
  if (values.length === 1 && path.length) return grow(nodes, levels, [...path, values[0]], [...names, values[0]]);
  return { path, names, nodes, children: values.map((value) => grow(groups.get(value), levels, [...path, value], [value])) };
}

const pitchOf = (cell) => cell + (cell >= 10 ? 3 : cell >= 6 ? 2 : 1);
const labelOf = (cell) => (cell >= 8 ? 17 : 13);

function measure(tree, width, cell, depth, slim) {
  if (!tree.children.length) return measureLeaf(tree, width, cell, depth, slim);
  const pad = depth ? (cell >= 10 ? 10 : 6) : 0;
  const gap = cell >= 10 ? 12 : 8;
  const head = depth ? labelOf(cell) + 2 : 0;
  const room = width - 2 * pad;
  const lines = [[]];
  let used = 0;
  for (const child of tree.children) {
    const box = measure(child, room, cell, depth + 1, slim);
    if (used > 0 && used + box.width > room) {
      lines.push([]);
      used = 0;
    }
    lines.at(-1).push(box);
    used += box.width + gap;
  }
  const children = [];
  let [y, widest] = [head + pad, 0];
  for (const line of lines) {
    stretch(line, room, gap, lines[0].length);
    let x = pad;
    for (const box of line) {
      children.push({ box, x, y });
      x += box.width + gap;
    }
    widest = Math.max(widest, x - gap - pad);
    y += Math.max(...line.map((box) => box.height)) + gap;
  }
  return { tree, depth, children, width: widest + 2 * pad, height: y - gap + pad };
}

// Boxes of one line fill it and are equally high; a last line with fewer boxes stays as it is.
function stretch(line, room, gap, usual) {
  if (!line[0]?.children.length) return;
  const spare = room - line.reduce((sum, box) => sum + box.width + gap, -gap);
  const height = Math.max(...line.map((box) => box.height));
  for (const box of line) {
    if (line.length >= usual && spare > 0) box.width += spare / line.length;
    box.height = height;
  }
}

function measureLeaf(tree, width, cell, depth, slim) {
  const pitch = pitchOf(cell);
  const most = Math.max(1, Math.floor((width + pitch - cell) / pitch));
  const columns = Math.min(most, depth && slim ? Math.max(4, Math.ceil(Math.sqrt(tree.nodes.length * slim))) : most);
  const head = depth ? labelOf(cell) : 0;
  const rows = Math.ceil(tree.nodes.length / columns);
  const across = Math.min(columns, Math.max(tree.nodes.length, depth ? 4 : 1));
  return { tree, depth, columns, children: [], width: across * pitch - (pitch - cell), height: head + rows * pitch };
}

function place(plan, cell) {
  const boxes = [];
  const leaves = [];
  const cells = new Map();
  walk(plan, 0, 0);
  return { cell, height: Math.ceil(plan.height) + 1, width: plan.width, boxes, leaves, cells, label: labelOf(cell) };

  function walk(part, x, y) {
    const box = { x, y, width: part.width, height: part.height, path: part.tree.path, names: part.tree.names, depth: part.depth };
    if (!part.children.length) {
      leaves.push(Object.assign(box, { leaf: true, nodes: part.tree.nodes.map((node) => node.number) }));
      const head = part.depth ? labelOf(cell) : 0;
      part.tree.nodes.forEach((node, turn) => {
        const [column, row] = [turn % part.columns, Math.floor(turn / part.columns)];
        const at = { x: x + column * pitchOf(cell), y: y + head + row * pitchOf(cell) };
        cells.set(node.number, Object.assign(at, { leaf: leaves.length - 1, turn }));
      });
    }
    if (part.depth) boxes.push(box);
    for (const child of part.children) walk(child.box, x + child.x, y + child.y);
  }
}
