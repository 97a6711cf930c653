// How many wrong labels are left: what the spot checks say, and when one may stop.

import { $, el } from "./dom.js";
import { post } from "./server.js";

const count = (x) => Math.round(x).toLocaleString("en");
export const share = (p) => `${Number((100 * p).toPrecision(2))} %`;

export function showLeft(store) {
  const { remaining: left } = store;
  const mean = count(left.mean);
  $("estimate").textContent = left.checks
    ? `≈ ${mean} wrong left (${count(left.low)}–${count(left.high)})`
    : `≈ ${mean} wrong left: expected by the model, not checked`;
  $("estimate").title = left.checks ? `90 % interval, from ${left.checks} spot checks` : "Expected by the model, not checked";
  $("estimate-text").replaceChildren(...explained(store).map((words) => el("p", { text: words })));
  $("stop-share").value = String(Number((100 * left.stop_below).toPrecision(6)));
  $("stop-part").hidden = !store.review.learns;
  showStop(left);
}

function explained(store) {
  const { remaining: left, review } = store;
  if (!review.learns) {
    return [`About ${count(left.mean)} of the ${count(left.rows)} undecided suspects are expected to be wrong. That is what the model expects, corrected by your decisions; nothing has checked it.`,
      "This folder says nothing of the rows that are not listed, so there are no spot checks: run exempla fix-labels again to have them."];
  }
  const parts = left.checks
    ? [`Between ${count(left.low)} and ${count(left.high)} of the ${count(left.rows)} undecided rows of the file are wrong (90 % interval).`,
      `It rests on ${left.checks} spot checks, rows drawn at random from all ${count(left.all)} rows whatever their probability, and on nothing the model says: it holds whatever the mistakes are like. It narrows with every spot check.`,
      `The single figure, ${count(left.mean)}, weighs the spot checks with what the model expects.`]
    : [`The model expects about ${count(left.mean)} of the ${count(left.rows)} undecided rows of the file to be wrong. Nothing has checked that yet.`,
      "Every third row that comes is a spot check, drawn at random from all rows. After the first ones an interval stands here."];
  parts.push(left.stop ? "That is below the share named here: you can stop." : needed(left));
  return parts;
}

// With none found wrong, m spot checks bound the share left by about 3.2/m.
function needed(left) {
  const least = Math.min(Math.ceil(3.2 / left.stop_below), left.all);
  return left.checks < least
    ? `To be sure that at most ${share(left.stop_below)} are left takes about ${count(least)} spot checks, with next to none of them wrong.` : "";
}

// Said once, and again when another share is named.
let dismissed = "";
const about = (left) => String(left.stop_below);

function showStop(left) {
  $("stop").hidden = !left.stop || dismissed === about(left);
  if (!left.stop) return;
  $("stop-text").textContent = `You can stop here: at most ${count(left.sure)} of all ${count(left.all)} rows (${share(left.stop_below)} was named) are still wrong, by ${left.checks} spot checks (90 % sure, however often one looks).`;
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
