// What surrounds the card: figures, filters, buttons, the red banner, light and dark.

import { $, data, el, isolated, visible } from "./dom.js";

export function showFigures(store) {
  const all = store.suspects.length;
  const { decided, remaining } = store;
  const source = visible(store.review.source);
  $("source").replaceChildren("· ", data(source));
  $("source").title = source;
  $("elsewhere").textContent = store.review.elsewhere;
  $("elsewhere").hidden = !store.review.elsewhere;
  document.title = `${decided}/${all} · ${isolated(source)} · exempla review`;
  $("progress").max = Math.max(1, all);
  $("progress").value = decided;
  $("progress-text").textContent = `${decided}/${all}`;
  const [mean, low, high] = [remaining.mean, remaining.low, remaining.high].map(Math.round);
  $("estimate").textContent = `≈ ${mean} wrong left (${low}–${high})`;
  $("estimate").title = "Estimated wrong labels among the undecided suspects, with a 90 % interval";
  $("estimate-text").textContent = explain(store, mean, low, high);
}

function explain(store, mean, low, high) {
  const { expected_wrong: expected } = store.review;
  const listed = store.suspects.reduce((sum, suspect) => sum + suspect.probability, 0);
  const parts = [
    `About ${mean} of the undecided suspects are wrong; 90 % interval ${low} to ${high}.`,
    "It is the sum of their probabilities, raised or lowered together so that they agree with what you have decided so far; the interval allows for chance and for doubt about that correction.",
  ];
  if (expected !== null && expected - listed >= 0.5) {
    parts.push(`About ${Math.round(expected - listed)} more are expected among rows that are not listed here.`);
  }
  return parts.join(" ");
}

export function showFilters(store, changed) {
  const option = (value, words = value) => el("option", { value, text: visible(words) });
  const sides = [...new Set(store.suspects.map((suspect) => suspect.side))];
  const decisions = { pending: "undecided", keep: "kept", relabel: "relabelled", remove: "removed", skip: "skipped", noted: "with a note" };
  $("filter-class").replaceChildren(option("", "all"), ...store.classes.map((label) => option(label)));
  $("filter-side").replaceChildren(option("", "all"), ...sides.map((side) => option(side)));
  $("filter-decision").replaceChildren(option("", "all"), ...Object.entries(decisions).map(([value, words]) => option(value, words)));
  for (const name of ["class", "side", "decision", "find"]) {
    $(`filter-${name}`).addEventListener("input", (event) => {
      store.filter[name] = event.target.value;
      changed();
    });
  }
}

export function showActions(store) {
  const here = store.current === null ? null : store.suspect;
  $("do-keep").querySelector("span").replaceChildren("Keep ", here ? data(here.given) : "");
  $("do-relabel").querySelector("span").replaceChildren("Relabel", ...(here ? [" → ", data(here.suggested)] : []));
  $("digits").classList.toggle("many", store.digits.size > 4);
  $("digits").replaceChildren(...[...(here ? store.digits : [])].map(([key, label]) => {
    const given = label === here.given;
    return el("button", { class: given ? "given" : "", "data-digit": key, title: given ? "the given label: keeps it" : "" },
      el("kbd", { text: key }), " ", data(label));
  }));
  for (const id of ["do-keep", "do-relabel", "do-class", "do-remove", "do-skip", "do-note"]) $(id).disabled = !here;
  $("do-undo").disabled = !store.undo;
  $("do-redo").disabled = !store.redo;
}

// "saving", "saved", "unsent" (a decision waits), "away" (nothing waits), "failed" (never started).
export function showBanner(what, message, error) {
  const saved = $("saved");
  saved.textContent = { saving: "saving…", saved: "saved ✓", unsent: "not saved", away: "no server", failed: "" }[what];
  saved.className = `saved ${what === "saved" ? "" : what === "saving" ? "busy" : "bad"}`;
  if (what === "saving") return; // a resend keeps the banner until it has succeeded
  $("banner").hidden = what === "saved";
  $("banner-discard").hidden = what !== "unsent";
  if (what === "saved") return;
  const away = error === undefined || error instanceof TypeError || error.name === "TimeoutError";
  const cause = error?.status === 403 && what !== "failed"
    ? "The server was started anew: open the address it printed, in this browser, and this tab goes on."
    : away ? "The server does not answer. Start `exempla review` again if it has ended." : error.body?.detail ?? error.message;
  $("banner-text").textContent = {
    unsent: `Not saved yet: ${message?.words}. ${cause} It is sent again by itself.`,
    away: `${cause} All decisions so far are saved.`,
    failed: cause,
  }[what];
}

export function startTheme() {
  const root = document.documentElement;
  const stored = localStorage.getItem("exempla-theme");
  if (stored) root.dataset.theme = stored;
  $("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("exempla-theme", root.dataset.theme);
  });
}
