// The card of one suspect, and the rows that contradict its label or agree with it.
//
// A positive weight of a word or column supports the label of its own row. Colours show what that means
// for the suspect: it `doubts` the given label or `backs` it.

import { $, chance, data, el, marked, short } from "./dom.js";
import { showPicture } from "./pictures.js";
import { describe } from "./store.js";

// What a positive and a negative weight mean for the suspect's label, by the row they belong to.
const SUSPECT = { positive: ["backs", "supports the given label"], negative: ["doubts", "contradicts the given label"] };
const SUPPORTER = { positive: ["backs", "supports this row's label"], negative: ["doubts", "contradicts this row's label"] };
const CONTRADICTING = { positive: ["doubts", "supports this row's label"], negative: ["backs", "contradicts this row's label"] };
const FOLDED = 1200; // characters of a text that are shown at first

export function showCard(card, suspect, state, { conflict = null, spot = false } = {}) {
  const { content } = card;
  const words = content.words ?? [];
  const decisive = words.length
    ? words.slice(0, 8).map(([word]) => word)
    : strongest(content.cells ?? []).slice(0, 5).map(([column]) => column);
  $("card").replaceChildren(
    el("h2", {}, `Row ${card.row}`, card.id ? el("span", { class: "id" }, "id ", data(card.id)) : null,
      spot ? el("span", { class: "tag", text: "spot check", title: "drawn at random, to estimate how many labels are wrong" }) : null),
    labels(card, suspect),
    conflict ?? "",
    status(state),
    ...body(content, "train", card.row, SUSPECT, card.span),
    decisive.length
      ? el("p", { class: "decisive" }, el("span", { class: "dim", text: words.length ? "Decisive words: " : "Decisive columns: " }), ...decisive.flatMap((word, i) => [i ? ", " : "", data(word)]))
      : "",
    original(card),
  );
  $("card").scrollTop = 0;
}

// The given label, what the model says, and how likely the label is wrong.
function labels(card, suspect) {
  const part = card.part ? [box("part", card.part, "part")] : [];
  const doubt = box("likely wrong", chance(suspect.chance), "doubt");
  if (card.kind === "number") {
    const expected = within(card.expected, card.spread);
    return el("div", { class: "labels" }, ...part, box("given number", card.given, "given"), box("expected", expected, suggests(suspect)), doubt);
  }
  if (!card.given) {
    const said = `model says, ${chance(card.model_probability)}`;
    return el("div", { class: "labels" }, ...part, box("label", "none yet", "given"), box(said, card.suggested, "suggested"));
  }
  const other = chance(card.model_probability).replaceAll(" ", "\u00a0");
  const model = agrees(card)
    ? [box("model agrees", card.given, "other"), box(`next best label, ${other}`, card.suggested, "other")]
    : [box(`model says, ${other}`, card.suggested, suggests(suspect))];
  return el("div", { class: "labels" }, ...part, box("given label", card.given, "given"), ...model, doubt);
}

// The model agrees with the given label: then `suggested` is only the best other label.
const agrees = (card) => (card.model_label ? card.model_label === card.given : card.model_probability < 0.5);

// Only where the label is more likely wrong than not does the page lean towards the other one.
export const leans = (suspect) => suspect.chance >= 0.5;
const suggests = (suspect) => (leans(suspect) ? "suggested" : "other");
const plain = (x) => String(Number(x.toPrecision(6)));

// A number and its spread, both to the spread's two digits.
function within(value, spread) {
  if (!(spread > 0)) return plain(value);
  const digits = Math.min(Math.max(0, 1 - Math.floor(Math.log10(spread))), 20);
  return `${value.toFixed(digits)} ± ${spread.toFixed(digits)}`;
}

// The row as the file has it, every column of it.
function original(card) {
  if (!card.original?.length) return "";
  const rows = card.original.map(([column, value]) => el("tr", {}, el("th", { scope: "row" }, data(column)),
    el("td", {}, value === null ? el("span", { class: "dim", text: "the text above" }) : value === "" ? el("span", { class: "dim", text: "(empty)" }) : data(value))));
  return el("details", { class: "original" }, el("summary", { text: `All columns of the row (${rows.length})` }),
    el("table", { class: "cells" }, el("tbody", {}, ...rows)));
}

export function showEvidence(card) {
  const heaviest = Math.max(1e-12, ...[...card.contradicting, ...card.supporters].map((r) => Math.abs(r.weight)));
  const part = (title, rows, kind) => rows.length
    ? [el("h2", { text: title }), ...rows.map((row) => evidenceRow(row, kind, heaviest, card.content))] : [];
  const parts = [
    ...part("Contradicted by", card.contradicting, "contradicts"),
    ...part("Supported by", card.supporters, "supports"),
  ];
  $("evidence").replaceChildren(...(parts.length ? parts
    : [el("h2", { text: "Evidence" }), el("p", { class: "dim", text: card.given ? "No single row contradicts this label; the suspicion comes from the model's probability." : "This row has no label yet." })]));
  $("evidence").scrollTop = 0;
}

export function showDone(store, openExport, spotCheck) {
  const { counts } = store;
  const rest = counts.pending
    ? `The filters hide ${counts.pending} undecided suspects.`
    : `${counts.keep} kept, ${counts.relabel} relabelled, ${counts.remove} removed, ${counts.skip} skipped.`;
  const more = store.review.learns
    ? [el("p", { class: "dim", text: "Unlisted rows can be wrong too. Spot checks of random rows estimate how many." }),
      el("p", { class: "row" }, el("button", { class: "solid", text: "Export", onclick: openExport }), el("button", { id: "more-spots", onclick: spotCheck }, el("kbd", { text: "S" }), " Spot-check another row"))]
    : [el("p", { class: "row" }, el("button", { class: "solid", text: "Export", onclick: openExport }))];
  $("card").replaceChildren(el("div", { class: "done" },
    el("h2", { text: store.sequence.length ? "Nothing left to decide here" : "There are no suspects" }),
    el("p", { text: rest }), ...more));
  $("evidence").replaceChildren();
}

const box = (title, value, kind) =>
  el("div", { class: `label-box ${kind}` }, el("small", { text: title }), el("b", {}, data(value)));

function status(state) {
  if (state.action === "pending" && !state.note) return "";
  const when = state.time ? ` at ${new Date(state.time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}` : "";
  const lines = [];
  if (state.action !== "pending") lines.push(el("span", { text: `Decided: ${describe(state)}${when}. ` }));
  if (state.note) lines.push(el("span", { class: "note" }, el("b", { text: "Note: " }), data(state.note)));
  return el("p", { class: "status" }, ...lines);
}

function body(content, space, row, meaning, span = null) {
  const parts = [];
  if (content.image) {
    const image = el("img", { class: "picture", alt: `Image of row ${row}` });
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
    showPicture(image, `/api/image/${encodeURIComponent(space)}/${Number(row)}`);
    parts.push(image);
  }
  if (content.name) parts.push(el("p", { class: "dim name" }, data(content.name)));
  if (content.text) parts.push(textBox(content, meaning, span));
  if (content.cells?.length) parts.push(table(content.cells, meaning));
  return parts;
}

// A text, folded if it is long; the button (or T) shows all of it.
function textBox(content, meaning, span) {
  const { text } = content;
  const words = content.words ?? [];
  const cut = content.cut ? `\n… ${content.cut} more characters: see all columns of the row` : "";
  const place = el("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Text of the row" });
  const draw = (from, to) => {
    const piece = (a, b) => marked(text.slice(Math.max(a, from), Math.min(b, to)), words, meaning);
    const parts = span && span[0] < to && span[1] > from
      ? [piece(from, span[0]), el("mark", { class: "part", title: "the part in question" }, piece(span[0], span[1])), piece(span[1], to)]
      : [piece(from, to)];
    place.replaceChildren(from > 0 ? "… " : "", ...parts, to < text.length ? " …" : cut);
  };
  if (text.length <= FOLDED + 200) {
    draw(0, text.length);
    return place;
  }
  const start = span ? Math.max(0, Math.min(span[0] - FOLDED / 3, text.length - FOLDED)) : 0;
  const button = el("button", { class: "show-all", "aria-expanded": "false", "aria-keyshortcuts": "t" });
  const fold = (folded) => {
    draw(folded ? Math.floor(start) : 0, folded ? Math.floor(start) + FOLDED : text.length);
    place.classList.toggle("whole", !folded);
    button.setAttribute("aria-expanded", String(!folded));
    button.replaceChildren(el("kbd", { text: "T" }), folded ? ` Show all ${text.length.toLocaleString("en")} characters` : " Show less");
  };
  button.addEventListener("click", () => fold(button.getAttribute("aria-expanded") === "true"));
  fold(true);
  return el("div", { class: "folding" }, place, button);
}

const strongest = (cells) =>
  cells.filter(([, , weight]) => weight !== 0).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));

function table(cells, meaning) {
  const decisive = new Set(strongest(cells).slice(0, 5));
  const ordered = [...strongest(cells), ...cells.filter(([, , weight]) => weight === 0)];
  const rows = ordered.map((cell) => {
    const [column, value, weight] = cell;
    const [says, title] = meaning[weight > 0 ? "positive" : "negative"];
    const strong = decisive.has(cell);
    const size = weight ? `${weight > 0 ? "+" : "−"}${short(Math.abs(weight))}` : "";
    return el("tr", { class: strong ? `strong ${says}` : "", title: weight ? title : null }, el("th", { scope: "row" }, data(column)), el("td", {}, value === "" ? "(empty)" : data(value)), el("td", { class: "w", text: size }));
  });
  return el("table", { class: "cells" }, el("tbody", {}, ...rows));
}

// Cells without weights of their own: the suspect's decisive columns come first.
function inOrderOf(cells, others) {
  const weight = new Map(cells.map(([column, , w]) => [column, Math.abs(w)]));
  return [...others].sort((a, b) => (weight.get(b[0]) ?? 0) - (weight.get(a[0]) ?? 0));
}

function evidenceRow(item, kind, heaviest, suspect) {
  const share = el("i");
  share.style.width = `${(100 * Math.abs(item.weight)) / heaviest}%`;
  const where = item.source === "curated" ? "curated " : "";
  const own = kind === "supports" ? SUPPORTER : CONTRADICTING;
  const { text, words, ...rest } = item.content;
  if (rest.cells?.every(([, , weight]) => weight === 0)) rest.cells = inOrderOf(suspect.cells ?? [], rest.cells);
  return el("section", { class: `evidence-row ${kind}` },
    el("header", {},
      el("span", { class: "dim" }, `${where}#${item.row}`, ...(item.id ? [" · ", data(item.id)] : [])),
      el("b", {}, data(item.label)),
      el("span", { class: "w dim", text: `weight ${short(item.weight)}` })),
    el("div", { class: "bar", "aria-hidden": "true" }, share),
    ...body(rest, item.source, item.row, own),
    // Without decisive words of its own, the row shows where it shares the suspect's.
    text ? el("p", {}, words ? marked(text, words, own) : marked(text, suspect.words ?? [], SUSPECT)) : null);
}
