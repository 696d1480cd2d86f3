// Elements made in one expression. Text is always text: no name of an object can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Puts these elements into a list in this order. What is there already stays, with its focus.
export function arrange(list, elements) {
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set(elements);
  for (const child of [...list.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((element, place) => {
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
  });
  if (focused && focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
}
