// The list of suspects: only the rows in view exist, so a hundred thousand scroll like ten.

import { $, chance, data, el } from "./dom.js";
import { describe, offered } from "./store.js";

const HEIGHT = 66; // as in style.css
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
    const { shown, sequence, renewed } = this.store;
    this.space.style.height = `${shown.length * HEIGHT}px`;
    const order = this.store.unlabelled ? "most useful first" : renewed ? `order updated after ${renewed} decisions` : "most suspicious first";
    $("list-count").textContent = shown.length === sequence.length
      ? `${shown.length} ${this.store.noun}, ${order}` : `${shown.length} of ${sequence.length} ${this.store.noun}`;
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
    const state = this.store.state(suspect.item);
    const change = state.action === "relabel" ? state.label : offered(suspect);
    const node = el("div", {
      class: "item", role: "option", id: `item-${suspect.item}`, "data-row": suspect.item,
      "data-action": state.action, "aria-selected": String(suspect.item === this.store.current),
      "aria-setsize": this.store.shown.length, "aria-posinset": place + 1,
    },
    el("span", { class: "mark", "aria-hidden": "true", text: MARKS[state.action] }),
    el("span", { class: "name" },
      el("b", {}, String(suspect.row), ...(suspect.id ? [" · ", data(suspect.id)] : []), state.note ? " ✎" : ""),
      el("span", {}, ...(suspect.part ? [data(suspect.part), ": "] : []), data(suspect.given || "?"), " → ", data(change)),
      suspect.snippet === suspect.id ? null : el("span", { class: "snippet" }, data(suspect.snippet))),
    el("span", { class: "p" }, suspect.given || suspect.kind === "number" ? chance(suspect.chance) : "", this.store.spots.has(suspect.item) ? el("small", { class: "tag", text: "spot" }) : null),
    el("span", { class: "hidden", text: describe(state) }));
    node.style.transform = `translateY(${place * HEIGHT}px)`;
    return node;
  }
}
