// What surrounds the card: figures, filters, buttons, the red banner, light and dark.

import { leans } from "./card.js";
import { $, data, el, isolated, visible } from "./dom.js";
import { showLeft } from "./left.js";
import { offered } from "./store.js";

export function showFigures(store) {
  const all = store.sequence.length;
  const { decided } = store;
  const source = visible(store.review.source);
  $("source").replaceChildren("· ", data(source));
  $("source").title = source;
  $("elsewhere").textContent = store.review.elsewhere;
  $("elsewhere").hidden = !store.review.elsewhere;
  document.title = `${decided}/${all} · ${isolated(source)} · exempla review`;
  $("progress").max = Math.max(1, all);
  $("progress").value = decided;
  $("progress-text").textContent = `${decided}/${all}`;
  showLeft(store);
}

export function showFilters(store, changed, look) {
  const option = (value, words = value) => el("option", { value, text: visible(words) });
  const sides = [...new Set(store.sequence.map((suspect) => suspect.side))];
  const decisions = { pending: "undecided", keep: "kept", relabel: "relabelled", remove: "removed", skip: "skipped", noted: "with a note", spot: "spot checks", contradicting: "against the evidence" };
  for (const name of ["class", "given", "suggested"]) {
    $(`filter-${name}`).replaceChildren(option("", name === "class" ? "any" : "all"), ...store.classes.map((label) => option(label)));
    $(`filter-${name}`).parentElement.hidden = !store.classes.length;
  }
  $("filter-side").replaceChildren(option("", "all"), ...sides.map((side) => option(side)));
  $("filter-decision").replaceChildren(option("", "all"), ...Object.entries(decisions).map(([value, words]) => option(value, words)));
  for (const name of Object.keys(store.filter)) {
    $(`filter-${name}`).addEventListener("input", (event) => {
      store.filter[name] = event.target.value;
      if (name === "find") look(event.target.value.trim());
      changed();
    });
  }
}

export function showActions(store) {
  const here = store.current === null ? null : store.suspect;
  const number = here?.kind === "number";
  $("do-keep").querySelector("span").replaceChildren("Keep ", here ? data(here.given) : "");
  $("do-relabel").querySelector("span").replaceChildren(number ? "Accept" : "Relabel", ...(here ? [" → ", data(offered(here))] : []));
  $("do-relabel").classList.toggle("leans", here !== null && leans(here));
  $("do-class").querySelector("span").textContent = number ? "Number…" : "Class…";
  $("digits").classList.toggle("many", store.digits.size > 4);
  $("digits").replaceChildren(...[...(here && !number ? store.digits : [])].map(([key, label]) => {
    const given = label === here.given;
    return el("button", { class: given ? "given" : "", "data-digit": key, title: given ? "the given label: keeps it" : "" },
      el("kbd", { text: key }), " ", data(label));
  }));
  for (const id of ["do-keep", "do-relabel", "do-class", "do-remove", "do-skip", "do-note"]) $(id).disabled = !here;
  $("do-undo").disabled = !store.undo;
  $("do-redo").disabled = !store.redo;
}

// A browser that is not signed in: how it can be, instead of an empty page.
export function showDoor() {
  document.body.dataset.door = "closed";
  const way = (...parts) => el("li", {}, ...parts);
  $("card").replaceChildren(el("section", { class: "done door" },
    el("h2", { text: "This browser is not signed in" }),
    el("p", { text: "The page shows your data, so it opens only with a one-time link." }),
    el("h3", { text: "To get a new link" }),
    el("ol", {},
      way("In the window where ", el("code", { text: "exempla review" }), " runs, press ", el("kbd", { text: "Enter" }), ": it prints another link. Open it here."),
      way("If that window is gone, start ", el("code", { text: "exempla review DIR" }), " again, with the folder of the review. All decisions are saved."),
      way("In a browser that is already signed in, the address without the part after the question mark opens the page.")),
    el("p", { class: "row" }, el("button", { class: "solid", text: "Try again", onclick: () => location.reload() }))));
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
    ? "The server was restarted. Open the link it printed in this browser; this tab then continues."
    : away ? "The server does not respond. If it has stopped, start `exempla review` again." : error.body?.detail ?? error.message;
  $("banner-text").textContent = {
    unsent: `Not saved yet: ${message?.words}. ${cause} It will be retried automatically.`,
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
