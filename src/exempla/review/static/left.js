// How many labels are still wrong: the initial sample, the interval from spot checks, when to stop.

import { $, el } from "./dom.js";
import { post } from "./server.js";

const count = (x) => Math.round(x).toLocaleString("en");
export const share = (p) => `${Number((100 * p).toPrecision(2))} %`;

export function showLeft(store) {
  const { remaining: left } = store;
  const mean = count(left.mean);
  $("estimate").textContent = left.checks
    ? `≈ ${mean} still wrong (${count(left.low)}–${count(left.high)})${store.contradictions.length ? " ⚠" : ""}`
    : store.unlabelled ? `${mean} without a label` : `≈ ${mean} still wrong (model estimate)`;
  $("estimate").title = left.checks ? `90 % interval from ${left.checks} spot checks` : "Estimated by the model, not checked yet";
  $("estimate-text").replaceChildren(...explained(store).map((words) => el("p", { text: words })));
  $("stop-share").value = String(Number((100 * left.stop_below).toPrecision(6)));
  $("stop-part").hidden = !store.review.learns;
  showStop(left);
  showSample(store);
  showDoubt(store);
}

// The random rows that come first, and the interval so far.
function showSample({ remaining: left, sample }) {
  $("sample").hidden = !sample || left.checks >= sample;
  $("sample-text").textContent = `First, check ${sample} random rows (${left.checks} done). They show how many labels are wrong and improve the order of the suspects.`
    + (left.checks ? ` 90 % interval for wrong labels in the file: ${count(left.low + left.found)}–${count(left.high + left.found)}.` : "");
}

// Decisions that contradict confident evidence: said once for each number of them.
let accepted = 0;
function showDoubt({ contradictions, remaining: left }) {
  const n = contradictions.length;
  $("doubt").hidden = n <= accepted;
  $("doubt-text").textContent = `${n} of your decisions contradict confident evidence: more than the model should get wrong. The estimate of ${count(left.mean)} wrong labels relies on them. Please check them again.`;
  $("doubt-dismiss").onclick = () => {
    accepted = n;
    $("doubt").hidden = true;
    $("card").focus({ preventScroll: true });
  };
}

export function listenToSample(skip, showThem) {
  $("sample-skip").addEventListener("click", skip);
  $("doubt-show").addEventListener("click", showThem);
}

function explained(store) {
  const { remaining: left, review } = store;
  if (!review.learns) {
    return [`The model expects about ${count(left.mean)} of the ${count(left.rows)} undecided suspects to be wrong, given your decisions. Nothing has checked this number.`,
      "This folder contains no unlisted rows, so there are no spot checks. Run exempla fix-labels again to get them."];
  }
  const parts = left.checks
    ? [`Between ${count(left.low)} and ${count(left.high)} of the ${count(left.rows)} undecided rows of the file are wrong (90 % interval).`,
      `The interval uses ${left.checks} spot checks, drawn at random from all ${count(left.all)} rows, and not the model. It holds for any kind of mistake and narrows with every spot check.`,
      `The single figure, ${count(left.mean)}, combines the spot checks with the model's estimate.`]
    : [`The model expects about ${count(left.mean)} of the ${count(left.rows)} undecided rows of the file to be wrong. Nothing has checked this number yet.`,
      "Spot checks, drawn at random from all rows, will replace it with an interval."];
  parts.push(left.stop ? "That is below the limit set here: you can stop." : needed(left));
  return parts;
}

// With none found wrong, m spot checks bound the fraction of errors by about 3.2/m.
function needed(left) {
  const least = Math.min(Math.ceil(3.2 / left.stop_below), left.all);
  return left.checks < least
    ? `To show that at most ${share(left.stop_below)} are wrong, you need about ${count(least)} spot checks with almost none of them wrong.` : "";
}

// Shown once, and again when the limit changes.
let dismissed = "";
const about = (left) => String(left.stop_below);

function showStop(left) {
  $("stop").hidden = !left.stop || dismissed === about(left);
  if (!left.stop) return;
  $("stop-text").textContent = `You can stop: at most ${count(left.sure)} of all ${count(left.all)} rows are still wrong (limit ${share(left.stop_below)}; ${left.checks} spot checks, 90 % confidence).`;
  $("stop-go-on").onclick = () => {
    dismissed = about(left);
    $("stop").hidden = true;
    $("card").focus({ preventScroll: true });
  };
}

export function openLeft() {
  $("stop-problem").textContent = "";
  $("left-dialog").showModal();
}

export function listenToShare(taken) {
  $("stop-share").addEventListener("change", async (event) => {
    const percent = Number(event.target.value);
    if (!(percent > 0 && percent < 100)) {
      $("stop-problem").textContent = "Give a number between 0 and 100.";
      return;
    }
    try {
      taken(await post("/api/stop", { share: percent / 100 }));
      $("stop-problem").textContent = "";
    } catch (error) {
      $("stop-problem").textContent = error.body?.detail ?? error.message;
    }
  });
}
