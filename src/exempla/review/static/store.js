// The state of the page: the suspects, the decisions, the filters and the current item.
//
// An item is what a decision is about: a row, or a part of one. `sequence` is the order of the items.
// The server updates it from the decisions, but an opened row keeps its place.

import { isolated } from "./dom.js";

export const PENDING = { action: "pending", label: null, note: "", time: "", version: 0 };
const FILTERS = ["class", "given", "suggested", "side", "decision", "find"];

export class Store {
  constructor(review) {
    this.review = review;
    this.classes = review.classes;
    this.digits = digitKeys(review.classes);
    this.byItem = new Map();
    this.sequence = review.suspects.map((values) => this.add(values));
    this.unlabelled = this.sequence.length > 0 && this.sequence.every((suspect) => suspect.given === "");
    this.noun = this.unlabelled ? "rows" : "suspects";
    this.places = new Map();
    this.number();
    this.states = new Map();
    this.spots = new Set();
    this.opened = new Set();
    this.waiting = null; // the spot check drawn last, while it is undecided
    this.renewals = this.renewed = 0; // how many decisions the order should follow, and follows
    this.version = 0;
    this.synced = 0; // every event up to here has been taken in (a decision's answer skips some)
    this.undo = this.redo = null;
    this.counts = null;
    this.remaining = null;
    this.contradictions = []; // decided items that contradict confident evidence
    this.sample = 0; // random rows to check first
    this.filter = Object.fromEntries(FILTERS.map((name) => [name, ""]));
    this.found = null; // items whose content holds what is looked for; null: not asked yet
    this.shown = this.sequence;
    this.current = null; // an item
  }

  add(values) {
    const suspect = Object.fromEntries(this.review.fields.map((field, i) => [field, values[i]]));
    suspect.chance = suspect.probability;
    this.byItem.set(suspect.item, suspect);
    return suspect;
  }

  number() {
    this.places = new Map(this.sequence.map((suspect, place) => [suspect.item, place]));
  }

  state(item) {
    return this.states.get(item) ?? PENDING;
  }

  // Take in an answer of the server; answers may arrive out of order. Returns the items that moved.
  take(answer) {
    const moved = [];
    for (const state of answer.changes ?? []) {
      if (state.version > this.state(state.row).version) {
        this.states.set(state.row, state);
        moved.push(state.row);
      }
    }
    for (const [item, values] of answer.spots ?? []) this.takeSpot(item, values);
    if (answer.version >= this.version) {
      for (const part of ["version", "undo", "redo", "counts", "remaining", "waiting", "renewals", "contradictions", "sample"]) this[part] = answer[part];
    }
    return moved;
  }

  // A row drawn as a spot check comes next, be it from the list or from the rest.
  takeSpot(item, values) {
    if (this.spots.has(item)) return;
    this.spots.add(item);
    const suspect = this.byItem.get(item) ?? this.add(values);
    if (this.opened.has(item)) return;
    const rest = this.sequence.filter((other) => other.item !== item);
    const here = rest.findIndex((other) => other.item === this.current);
    rest.splice(here + 1, 0, suspect);
    this.sequence = rest;
    this.number();
  }

  // A renewed order: what was opened or decided stays where it is, the others fill the gaps.
  renew({ order, chances, decisions }) {
    const stays = (suspect) => this.opened.has(suspect.item) || this.state(suspect.item).action !== "pending";
    const known = order.map((item) => this.byItem.get(item)).filter(Boolean);
    const free = known.filter((suspect) => !stays(suspect))[Symbol.iterator]();
    const moved = this.opened.size ? this.sequence.map((suspect) => (stays(suspect) ? suspect : free.next().value)) : known;
    if (!moved.includes(undefined) && moved.length === this.sequence.length) this.sequence = moved;
    for (const [item, chance] of chances) {
      const suspect = this.byItem.get(item);
      if (suspect && !this.opened.has(item)) suspect.chance = chance;
    }
    this.number();
    this.renewed = decisions;
    this.refilter();
  }

  get filtered() {
    return Object.values(this.filter).some((value) => value.trim() !== "");
  }

  refilter() {
    const { class: label, given, suggested, side, decision, find } = this.filter;
    const wanted = find.trim().toLowerCase();
    this.shown = this.sequence.filter((suspect) => {
      const state = this.state(suspect.item);
      return (!label || suspect.given === label || suspect.suggested === label || state.label === label)
        && (!given || suspect.given === given)
        && (!suggested || suspect.suggested === suggested)
        && (!side || suspect.side === side)
        && (!decision || this.decisionIs(decision, suspect, state))
        && (!wanted || String(suspect.row).includes(wanted) || suspect.id.toLowerCase().includes(wanted)
          || suspect.snippet.toLowerCase().includes(wanted) || this.found?.has(suspect.item));
    });
  }

  decisionIs(decision, suspect, state) {
    if (decision === "noted") return state.note !== "";
    if (decision === "contradicting") return this.contradictions.includes(suspect.item);
    return decision === "spot" ? this.spots.has(suspect.item) : state.action === decision;
  }

  get suspect() {
    return this.byItem.get(this.current);
  }

  // The place of the current item among those shown; where it would be if the filter hides it.
  place() {
    const at = this.places.get(this.current) ?? -1;
    let low = 0;
    let high = this.shown.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.places.get(this.shown[middle].item) < at) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  neighbour(step) {
    const place = this.place();
    const hidden = this.shown[place]?.item !== this.current;
    return this.shown[step > 0 && hidden ? place : place + step]?.item ?? null;
  }

  // The spot check that waits, or the next undecided item among those shown: from here on, then
  // from the start.
  nextPending() {
    if (this.waiting !== null && this.waiting !== this.current && !this.filtered) return this.waiting;
    const place = this.place();
    const order = [...this.shown.slice(place), ...this.shown.slice(0, place)];
    const open = (suspect) => suspect.item !== this.current && this.state(suspect.item).action === "pending";
    return order.find(open)?.item ?? null;
  }

  get decided() {
    return this.counts ? this.sequence.length - this.counts.pending - this.counts.skip : 0;
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

// The name of an item: its row, and the part of it.
export const called = (suspect) => `row ${suspect.row}${suspect.part ? `, ${isolated(suspect.part)}` : ""}`;

// The label that R assigns: the suggested class, or the expected number.
export function offered(suspect) {
  if (suspect.kind !== "number") return suspect.suggested;
  const said = suspect.suggested.trim();
  return said !== "" && Number.isFinite(Number(said)) ? said : String(suspect.expected);
}
