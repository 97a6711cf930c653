// The page: load, show a card, take a decision, move on when it is committed.

import { showCard, showDone, showEvidence } from "./card.js";
import { openClasses, openExport, openGo, openHelp, openNote, openNumber, prepareDialogs } from "./dialogs.js";
import { $, el } from "./dom.js";
import { listenToKeys } from "./keys.js";
import { List } from "./list.js";
import { listenToSample, listenToShare, openLeft } from "./left.js";
import { get, post, Sender } from "./server.js";
import { showActions, showBanner, showDoor, showFigures, showFilters, startTheme } from "./frame.js";
import { enter } from "./session.js";
import { called, describe, offered, Store } from "./store.js";

const POLL_MS = 2500;
const SLOW_MS = 2000;
let store;
let list;
let sender;
let queue = []; // what was asked for while the last decision was being committed
let working = false;
const cards = new Map();

async function start() {
  startTheme();
  prepareDialogs();
  const refused = await enter();
  const [review, state] = await Promise.all([get("/api/review"), get("/api/state")]).catch((error) => {
    throw refused && error.status === 403 ? Object.assign(new Error(refused), { refused: true }) : error;
  });
  store = new Store(review);
  store.take(state);
  store.synced = state.version;
  if (review.learns) store.renew(await get("/api/order"));
  store.refilter();
  list = new List(store, (item) => {
    toggleList(false);
    enqueue(() => go(item));
  });
  sender = new Sender(review.key, (what, message, error) => showBanner(what, message, error));
  showFilters(store, refilter, look);
  listenToSample(async () => {
    store.take(await post("/api/skip-sample", {}));
    showFigures(store);
    if (store.waiting === store.current) enqueue(() => obey("skip"));
  }, () => {
    $("filter-decision").value = store.filter.decision = "contradicting";
    refilter();
    if (store.shown.length) enqueue(() => go(store.shown[0].item));
  });
  listenToShare((answer) => {
    store.take(answer);
    showFigures(store);
  });
  listenToKeys(run);
  wireButtons();
  const last = Number(sessionStorage.getItem("exempla-row") ?? NaN);
  const resume = store.byItem.has(last) && store.state(last).action === "pending" ? last : store.nextPending();
  await go(resume ?? store.sequence[0]?.item ?? null);
  $("saved").textContent = "saved ✓";
  setInterval(poll, POLL_MS);
  document.addEventListener("visibilitychange", poll);
  document.body.dataset.ready = "yes";
  for (const message of sender.leftovers()) {
    await enqueue(async () => settle(await sender.deliver(message), message.body.row ?? store.current));
  }
}

function wireButtons() {
  const commands = {
    "do-keep": "keep", "do-relabel": "relabel", "do-class": "class", "do-remove": "remove",
    "do-skip": "skip", "do-note": "note", "do-undo": "undo", "do-redo": "redo", "do-back": "back",
    "do-next": "next", help: "help", estimate: "left", export: "export", "stop-export": "export",
  };
  for (const [id, command] of Object.entries(commands)) {
    $(id).addEventListener("click", () => {
      if (id.startsWith("do-")) $("card").focus({ preventScroll: true }); // so that Space skips again
      run(command);
    });
  }
  $("digits").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) run(`digit ${button.dataset.digit}`);
  });
  $("banner-retry").addEventListener("click", () => (sender.busy ? sender.retryNow() : poll()));
  $("banner-discard").addEventListener("click", () => sender.discard());
  $("toggle-list").addEventListener("click", () => toggleList());
}

function toggleList(open = !$("list-pane").classList.contains("open")) {
  $("list-pane").classList.toggle("open", open);
  $("toggle-list").setAttribute("aria-expanded", String(open));
  if (open) list.reveal();
}

function run(command, repeated = false) {
  if (repeated && working) return; // a held arrow key goes as fast as the cards come
  const views = { help: openHelp, left: openLeft, evidence: toggleEvidence, filter: focusFilter, leave, export: openExport, text: toggleText };
  if (views[command]) views[command]();
  else enqueue(() => obey(command));
}

// One thing after the other, each on the card that the one before it led to.
async function enqueue(deed) {
  if (sender.failing) {
    tell("The previous decision is not saved yet.");
    return;
  }
  queue.push(deed);
  if (working) return;
  working = true;
  while (queue.length) {
    const began = performance.now();
    try {
      await queue.shift()();
    } catch (error) {
      queue = [];
      tell(`Something went wrong: ${error.message}`);
    }
    // After a long wait the person may have pressed again because nothing seemed to happen.
    if (performance.now() - began > SLOW_MS && queue.length) {
      queue = [];
      tell("Keys pressed while saving were ignored.");
    }
  }
  working = false;
}

function obey(command) {
  if (command === "go") return openGo(findRow);
  if (command === "back" || command === "next") return step(command === "back" ? -1 : 1);
  if (command === "undo" || command === "redo") return turn(command);
  if (command === "spot") return spotCheck();
  if (store.current === null || $("card").dataset.row === undefined) return undefined;
  return decideBy(command);
}

function decideBy(command) {
  const { suspect } = store;
  if (command.startsWith("digit ")) {
    const label = suspect.kind === "number" ? undefined : store.digits.get(command.slice(6));
    return label === undefined ? undefined : choose(label);
  }
  if (suspect.kind === "number" && command === "class") {
    return openNumber(suspect, (number) => enqueue(() => choose(number)));
  }
  if (command === "class" || (command === "relabel" && offered(suspect) === suspect.given)) {
    return openClasses(store.classes, suspect, (label) => enqueue(() => choose(label)));
  }
  if (command === "note") return openNote(store.state(suspect.item).note, (text) => enqueue(() => note(text)));
  return decide(command, command === "relabel" ? offered(suspect) : null);
}

// Choosing the label a row already has means keeping it.
const choose = (label) => (label === store.suspect.given ? decide("keep", null) : decide("relabel", label));

async function decide(action, label) {
  const row = store.current;
  const { note: text, version: seen } = store.state(row);
  const words = `${called(store.suspect)}: ${describe({ action, label })}`;
  const result = await sender.send("/api/decide", { row, action, label, note: text, seen }, words);
  await settle(result, row, { action, label });
}

async function note(text) {
  const row = store.current;
  const { action, label, version } = store.state(row);
  const result = await sender.send("/api/decide", { row, action, label, note: text, seen: version }, `note on ${called(store.suspect)}`);
  if (result.ok) {
    store.take(result.ok);
    await show();
  } else await settle(result, row);
}

async function turn(command) {
  const step_ = store[command];
  if (!step_) return tell(`Nothing to ${command}.`);
  const result = await sender.send(`/api/${command}`, { seen: step_.version }, command);
  if (result.ok) {
    store.take(result.ok);
    tell(`${command === "undo" ? "Undone" : "Redone"}: ${named(result.ok.state.row)} is ${describe(result.ok.state)}.`);
    await go(result.ok.state.row);
  } else if (result.conflict) {
    store.take(result.conflict);
    await go(result.conflict.current?.row ?? store.current, notice(
      `Another tab made a decision in the meantime, so nothing was ${command === "undo" ? "undone" : "redone"}. Press again to revert its latest decision.`));
  } else await settle(result, store.current);
  return undefined;
}

// After the server's answer to a decision: move on, or show what stood in the way.
async function settle(result, row, mine) {
  if (result.ok) {
    store.take(result.ok);
    tell(`${named(row)}: ${describe(result.ok.state)}.`);
    if (row === store.current) await go(store.nextPending());
    else await show();
    renewOrder();
    return;
  }
  queue = [];
  if (result.conflict) {
    const theirs = result.conflict.current;
    store.take(result.conflict);
    const again = mine ? el("button", { text: `Use mine: ${describe(mine)}`, onclick: () => enqueue(() => decide(mine.action, mine.label)) }) : null;
    const leave_ = el("button", { text: "Leave it", onclick: () => enqueue(() => go(store.nextPending())) });
    const what = theirs ? `Another tab decided about ${named(theirs.row)}: ${describe(theirs)}.` : "Another tab made a decision first.";
    await go(row, notice(`${what} Your decision was not saved.`, again, leave_));
  } else if (result.refused) await go(row, notice(`The server rejected this: ${result.refused}`));
  else if (result.discarded) await poll();
}

const named = (item) => (store.byItem.has(item) ? called(store.byItem.get(item)) : `row ${item}`);

// In the background, after the next card is shown: update the probabilities of the other rows.
async function renewOrder() {
  if (!store.review.learns || store.renewals === store.renewed) return;
  try {
    store.renew(await get("/api/order"));
    list.refresh();
  } catch {
    // The order stays as it was; the next decision asks again.
  }
}

async function spotCheck() {
  if (!store.review.learns) return tell("This folder has no rows to spot-check.");
  store.take(await post("/api/spot", {}));
  store.refilter();
  if (store.waiting === null) return tell("No row is left to draw.");
  return go(store.waiting);
}

const notice = (words, ...buttons) => el("div", { class: "status conflict", role: "alert" },
  el("span", { text: words }), buttons.length ? el("p", { class: "row" }, ...buttons) : "");

async function go(item, conflict = null) {
  store.current = item;
  if (item === null) {
    delete $("card").dataset.row;
    sessionStorage.removeItem("exempla-row");
    showDone(store, openExport, () => run("spot"));
  } else {
    sessionStorage.setItem("exempla-row", String(item));
    let card = cards.get(item);
    if (!card) {
      try {
        card = await fetchCard(item);
      } catch {
        return poll(); // the banner says what is the matter; the card stays
      }
    }
    if (store.current !== item) return undefined;
    store.opened.add(item);
    showCard(card, store.suspect, store.state(item), { conflict, spot: store.spots.has(item) });
    showEvidence(card);
    $("card").dataset.row = item;
    const ahead = store.nextPending();
    if (ahead !== null && !cards.has(ahead)) fetchCard(ahead).catch(() => {});
  }
  store.refilter();
  list.reveal();
  showFigures(store);
  showActions(store);
  if (!document.querySelector("dialog[open]") && !$("list-pane").contains(document.activeElement)) {
    $("card").focus({ preventScroll: true });
  }
  return undefined;
}

async function fetchCard(item) {
  const card = await get(`/api/suspect/${item}`);
  if (cards.size > 60) cards.delete(cards.keys().next().value);
  cards.set(item, card);
  return card;
}

// Draw the present card anew, without moving.
const show = () => go(store.current);

async function poll() {
  if (document.hidden || sender.busy) return;
  try {
    const answer = await get(`/api/state?since=${store.synced}`);
    const listed = store.sequence.length;
    const moved = store.take(answer);
    store.synced = answer.version;
    if (!sender.busy) showBanner("saved");
    if (moved.length || store.sequence.length !== listed) {
      if (moved.includes(store.current)) await show();
      else {
        store.refilter();
        list.refresh();
        showFigures(store);
        showActions(store);
      }
    }
  } catch (error) {
    if (!sender.busy) showBanner("away", null, error);
  }
}

function step(direction) {
  const row = store.current === null ? store.shown.at(direction > 0 ? 0 : -1)?.item ?? null : store.neighbour(direction);
  if (row === null) tell(direction > 0 ? "This is the last one." : "This is the first one.");
  return row === null ? undefined : go(row);
}

function findRow(typed) {
  const suspect = store.sequence.find((s) => String(s.row) === typed) ?? store.sequence.find((s) => s.id === typed);
  if (typed === "" || !suspect) return false;
  enqueue(() => go(suspect.item));
  return true;
}

function toggleEvidence() {
  const full = $("evidence").classList.toggle("full");
  tell(full ? "Evidence in full." : "Evidence in short.");
  $("evidence").scrollIntoView({ block: "nearest" });
}

// The whole text, or its beginning.
function toggleText() {
  document.querySelector("#card .show-all")?.click();
}

function refilter() {
  store.refilter();
  list.reveal();
}

// Rows whose text holds what is looked for; the server has the texts.
let lookup = null;
function look(wanted) {
  clearTimeout(lookup);
  store.found = null;
  if (wanted.length < 2) return;
  lookup = setTimeout(async () => {
    try {
      const { items } = await get(`/api/find?wanted=${encodeURIComponent(wanted)}`);
      if (store.filter.find.trim() !== wanted) return;
      store.found = new Set(items);
      refilter();
    } catch (error) {
      tell(`The texts could not be searched: ${error.message}`);
    }
  }, 200);
}

function focusFilter() {
  if (getComputedStyle($("list-pane")).display === "none") toggleList(true);
  $("filter-class").focus();
}

function leave() {
  toggleList(false);
  $("card").focus({ preventScroll: true });
}

function tell(words) {
  $("announce").textContent = words;
}

start().catch((error) => {
  showBanner("failed", null, error);
  if (error.status === 403 || error.refused) showDoor();
  $("banner-retry").addEventListener("click", () => location.reload());
  addEventListener("storage", () => location.reload()); // another tab was let in
});
