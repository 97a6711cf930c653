// The list of suspects: only the rows in view exist, so a hundred thousand scroll like ten.

import { $, data, el } from "./dom.js";
import { describe } from "./store.js";

const HEIGHT = 46; // as in style.css
const MARKS = { pending: "○", keep: "✓", relabel: "➜", remove: "✕", skip: "–" };

export class List {
  constructor(store, choose) {
    this.store = store;
    this.box = $("list");
    this.space = $("list-space");
    this.nodes = new Map();
    this.box.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.space.addEventListener("click", (event) => {
      const item = event.target.closest(".item");
      if (item) choose(Number(item.dataset.row));
    });
  }

  // Draw anew after the filter, a decision or the place changed.
  refresh() {
    const { shown, suspects } = this.store;
    this.space.style.height = `${shown.length * HEIGHT}px`;
    $("list-count").textContent = shown.length === suspects.length
      ? `${shown.length} suspects, most suspicious first` : `${shown.length} of ${suspects.length} suspects`;
    for (const node of this.nodes.values()) node.remove();
    this.nodes.clear();
    this.draw();
  }

  reveal() {
    const place = this.store.place();
    const top = place * HEIGHT;
    const height = this.box.clientHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + HEIGHT > this.box.scrollTop + height) this.box.scrollTop = top + HEIGHT - Math.floor(height / 2);
    this.refresh();
  }

  draw() {
    const { shown, current } = this.store;
    const first = Math.max(0, Math.floor(this.box.scrollTop / HEIGHT) - 6);
    const last = Math.min(shown.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / HEIGHT) + 6);
    for (const [place, node] of this.nodes) {
      if (place < first || place >= last) {
        node.remove();
        this.nodes.delete(place);
      }
    }
    for (let place = first; place < last; place += 1) {
      if (!this.nodes.has(place)) {
        const node = this.item(shown[place], place);
        this.nodes.set(place, node);
        this.space.append(node);
      }
    }
    const selected = current === null ? null : $(`item-${current}`);
    if (selected) this.box.setAttribute("aria-activedescendant", selected.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  item(suspect, place) {
    const state = this.store.state(suspect.row);
    const change = state.action === "relabel" ? state.label : suspect.suggested;
    const node = el("div", {
      class: "item", role: "option", id: `item-${suspect.row}`, "data-row": suspect.row,
      "data-action": state.action, "aria-selected": String(suspect.row === this.store.current),
      "aria-setsize": this.store.shown.length, "aria-posinset": place + 1,
    },
    el("span", { class: "mark", "aria-hidden": "true", text: MARKS[state.action] }),
    el("span", { class: "name" },
      el("b", {}, String(suspect.row), ...(suspect.id ? [" · ", data(suspect.id)] : []), state.note ? " ✎" : ""),
      el("span", {}, data(suspect.given), " → ", data(change))),
    el("span", { class: "p", text: suspect.probability.toFixed(2) }),
    el("span", { class: "hidden", text: describe(state) }));
    node.style.transform = `translateY(${place * HEIGHT}px)`;
    return node;
  }
}
