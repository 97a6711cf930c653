// The card of one suspect, and the rows that contradict its label or agree with it.
//
// A positive weight of a word or column speaks for the label of the row it stands in. Colours say what
// that means for the suspect: `doubts` its given label, or `backs` it.

import { $, data, el, marked, percent, short } from "./dom.js";
import { showPicture } from "./pictures.js";
import { describe } from "./store.js";

// What a positive and a negative weight say of the suspect's label, by the row they stand in.
const SUSPECT = { positive: ["backs", "speaks for the given label"], negative: ["doubts", "speaks against the given label"] };
const SUPPORTER = { positive: ["backs", "speaks for this row's label"], negative: ["doubts", "speaks against this row's label"] };
const CONTRADICTING = { positive: ["doubts", "speaks for this row's label"], negative: ["backs", "speaks against this row's label"] };

export function showCard(card, state, conflict) {
  const { content } = card;
  const words = content.words ?? [];
  const decisive = words.length
    ? words.slice(0, 8).map(([word]) => word)
    : strongest(content.cells ?? []).slice(0, 5).map(([column]) => column);
  $("card").replaceChildren(
    el("h2", {}, `Row ${card.row}`, card.id ? el("span", { class: "id" }, "id ", data(card.id)) : null),
    el("div", { class: "labels" },
      box("given label", card.given, "given"),
      box(`model says, ${percent(card.model_probability)}`, card.suggested, "suggested"),
      box("chance it is wrong", percent(card.probability), "doubt")),
    conflict ?? "",
    status(state),
    ...body(content, "train", card.row, SUSPECT),
    decisive.length
      ? el("p", { class: "decisive" }, el("span", { class: "dim", text: words.length ? "Decisive words: " : "Decisive columns: " }), ...decisive.flatMap((word, i) => [i ? ", " : "", data(word)]))
      : "",
  );
  $("card").scrollTop = 0;
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
    : [el("h2", { text: "Evidence" }), el("p", { class: "dim", text: "No single row contradicts this one; the model's own probability does." })]));
  $("evidence").scrollTop = 0;
}

export function showDone(store, openExport) {
  const { counts } = store;
  const rest = counts.pending
    ? `${counts.pending} undecided suspects are hidden by the filters.`
    : `${counts.keep} kept, ${counts.relabel} relabelled, ${counts.remove} removed, ${counts.skip} skipped.`;
  $("card").replaceChildren(el("div", { class: "done" },
    el("h2", { text: store.suspects.length ? "Nothing left to decide here" : "There are no suspects" }),
    el("p", { text: rest }),
    el("p", { class: "row" }, el("button", { class: "solid", text: "Export", onclick: openExport }))));
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

function body(content, space, row, meaning) {
  const parts = [];
  if (content.image) {
    const image = el("img", { class: "picture", alt: `Image of row ${row}` });
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
    showPicture(image, `/api/image/${encodeURIComponent(space)}/${Number(row)}`);
    parts.push(image);
  }
  if (content.name) parts.push(el("p", { class: "dim name" }, data(content.name)));
  if (content.text) {
    const cut = content.cut ? `\n… ${content.cut} more characters` : "";
    parts.push(el("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Text of the row" }, marked(content.text, content.words ?? [], meaning), cut));
  }
  if (content.cells?.length) parts.push(table(content.cells, meaning));
  return parts;
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
