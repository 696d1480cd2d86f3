// The commands that say more about a gang, to be copied.

import { h } from "./dom.js";

const COPIED_SECONDS = 2;

// What to type: Serried's own commands, and kubectl's for what the gang was made for and for its PodGroup.
function write(detail) {
  const { namespace, name, owner, object } = detail;
  const ours = owner || (/[:/]/.test(name) ? `${namespace}/${name}` : `podgroup/${name}`);
  const within = ` -n ${namespace}`;
  const commands = [`kubectl serried explain ${ours}${within}`];
  if (detail.queue) commands.push(`kubectl serried whatif --group ${ours}${within}`);
  commands.push(`kubectl serried decisions --group ${ours}${within}`);
  if (owner) commands.push(`kubectl describe ${owner}${within}`);
  if (object) commands.push(`kubectl describe ${object.kind.toLowerCase()}s.${object.apiVersion.split("/")[0]} ${object.name}${within}`);
  return commands;
}

// Where no clipboard may be used, the text is marked. `said` is where a screen reader hears of it.
async function copy(code, button, said) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Marked";
  }
  said.textContent = button.textContent;
  setTimeout(() => {
    button.textContent = "Copy";
    said.textContent = "";
  }, COPIED_SECONDS * 1000);
}

function lineOf(text, said) {
  const code = h("code", {}, text);
  const button = h("button", { type: "button", class: "again", "aria-label": `Copy: ${text}`, onclick: () => copy(code, button, said) }, "Copy");
  return h("li", {}, code, button);
}

export function listCommands(detail, said) {
  return h("section", {}, h("h3", {}, "Commands for details"), h("ul", { class: "commands" }, write(detail).map((text) => lineOf(text, said))));
}
