// Would it fit? A form over POST /debug/whatif, which changes nothing.

import { h } from "./dom.js";

export class WhatIf {
  constructor() {
    this.title = h("h2", { tabindex: "-1" }, "What if");
    this.element = h("div", { class: "whatif" }, this.title);
  }

  render() {}
}
