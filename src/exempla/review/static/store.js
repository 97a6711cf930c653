// What the page knows: the suspects, what is decided about each, the filters, where we are.

import { isolated } from "./dom.js";

export const PENDING = { action: "pending", label: null, note: "", time: "", version: 0 };

export class Store {
  constructor(review) {
    this.review = review;
    this.classes = review.classes;
    this.digits = digitKeys(review.classes);
    this.suspects = review.suspects.map((values) =>
      Object.fromEntries(review.fields.map((field, i) => [field, values[i]])));
    this.byRow = new Map(this.suspects.map((suspect, place) => [suspect.row, place]));
    this.states = new Map();
    this.version = 0;
    this.synced = 0; // every event up to here has been taken in (a decision's answer skips some)
    this.undo = this.redo = null;
    this.counts = null;
    this.remaining = null;
    this.filter = { class: "", side: "", decision: "", find: "" };
    this.shown = this.suspects;
    this.current = null; // a row number
  }

  state(row) {
    return this.states.get(row) ?? PENDING;
  }

  // Take in an answer of the server; answers may arrive out of order. Returns the rows that moved.
  take(answer) {
    const moved = [];
    for (const state of answer.changes ?? []) {
      if (state.version > this.state(state.row).version) {
        this.states.set(state.row, state);
        moved.push(state.row);
      }
    }
    if (answer.version >= this.version) {
      for (const part of ["version", "undo", "redo", "counts", "remaining"]) this[part] = answer[part];
    }
    return moved;
  }

  refilter() {
    const { class: label, side, decision, find } = this.filter;
    const wanted = find.trim().toLowerCase();
    this.shown = this.suspects.filter((suspect) => {
      const state = this.state(suspect.row);
      return (!label || suspect.given === label || suspect.suggested === label || state.label === label)
        && (!side || suspect.side === side)
        && (!decision || (decision === "noted" ? state.note !== "" : state.action === decision))
        && (!wanted || String(suspect.row).includes(wanted) || suspect.id.toLowerCase().includes(wanted));
    });
  }

  get suspect() {
    return this.suspects[this.byRow.get(this.current)];
  }

  // The place of the current row among those shown; where it would be if the filter hides it.
  place() {
    const at = this.byRow.get(this.current) ?? -1;
    let low = 0;
    let high = this.shown.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.byRow.get(this.shown[middle].row) < at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  neighbour(step) {
    const place = this.place();
    const hidden = this.shown[place]?.row !== this.current;
    return this.shown[step > 0 && hidden ? place : place + step]?.row ?? null;
  }

  // The next undecided row among those shown, from here on, then from the start.
  nextPending() {
    const place = this.place();
    const order = [...this.shown.slice(place), ...this.shown.slice(0, place)];
    const open = (suspect) => suspect.row !== this.current && this.state(suspect.row).action === "pending";
    return order.find(open)?.row ?? null;
  }

  get decided() {
    return this.counts ? this.suspects.length - this.counts.pending - this.counts.skip : 0;
  }
}

// Which digit key stands for which class: a class that is a digit has its own key ("7" is 7, never
// 8), the others take the free ones from 1 on, in order.
export function digitKeys(classes) {
  const keys = new Map(classes.filter((label) => /^[0-9]$/.test(label)).map((label) => [label, label]));
  const free = [..."123456789"].filter((key) => !keys.has(key));
  const named = classes.filter((label) => !keys.has(label));
  named.slice(0, free.length).forEach((label, i) => keys.set(free[i], label));
  return new Map([...keys].sort(([a], [b]) => classes.indexOf(keys.get(a)) - classes.indexOf(keys.get(b))));
}

export function describe(state) {
  return { pending: "undecided", keep: "kept", relabel: `relabelled ${isolated(state.label)}`, remove: "removed", skip: "skipped" }[state.action];
}
