// The small windows: class search, note, go to row, export, help.

import { $, data, el, visible } from "./dom.js";
import { download } from "./pictures.js";
import { post } from "./server.js";

export function prepareDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    for (const button of dialog.querySelectorAll(".close")) button.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // the backdrop
    });
    dialog.addEventListener("close", () => $("card").focus({ preventScroll: true }));
  }
}

export const openHelp = () => $("help-dialog").showModal();

// Search a class; the suggested one comes first, then those that begin with what was typed.
export function openClasses(classes, suspect, choose) {
  const dialog = $("class-dialog");
  const input = $("class-find");
  const list = $("class-list");
  let shown = [];
  let at = 0;
  const pick = (label) => {
    dialog.close();
    choose(label);
  };
  const mark = () => {
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    const item = list.children[at];
    item?.scrollIntoView({ block: "nearest" });
    if (item) input.setAttribute("aria-activedescendant", item.id);
  };
  const draw = () => {
    const typed = input.value.trim().toLowerCase();
    const rank = (label) => (label.toLowerCase().startsWith(typed) ? 0 : 1) - (label === suspect.suggested ? 2 : 0);
    shown = classes.filter((label) => label.toLowerCase().includes(typed)).sort((a, b) => rank(a) - rank(b)).slice(0, 200);
    at = 0;
    list.replaceChildren(...shown.map((label, i) => {
      const hint = label === suspect.suggested ? "suggested" : label === suspect.given ? "given: keeps it" : "";
      return el("li", { role: "option", id: `class-${i}`, onclick: () => pick(label) },
        el("span", {}, data(label)), hint ? el("small", { text: hint }) : null);
    }));
    mark();
  };
  input.value = "";
  input.oninput = draw;
  input.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(shown.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      mark();
      event.preventDefault();
    } else if (event.key === "Enter" && !event.repeat) {
      event.preventDefault();
      if (shown[at] !== undefined) pick(shown[at]);
    }
  };
  draw();
  dialog.showModal();
  input.focus();
}

// Enter in the field and a click on the button do the same; Shift+Enter starts a new line of a note.
function onEnter(field, button, done) {
  field.onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !event.repeat) {
      event.preventDefault();
      done();
    }
  };
  button.onclick = done;
}

// A number typed in place of the given one.
export function openNumber(suspect, choose) {
  const dialog = $("number-dialog");
  const input = $("number-text");
  const done = () => {
    const typed = input.value.trim().replace("−", "-");
    if (typed === "" || !Number.isFinite(Number(typed))) {
      $("number-problem").textContent = "That is not a number.";
      return;
    }
    dialog.close();
    choose(typed);
  };
  input.value = "";
  input.placeholder = suspect.given;
  $("number-problem").textContent = "";
  onEnter(input, $("number-save"), done);
  dialog.showModal();
  input.focus();
}

export function openNote(note, save) {
  const dialog = $("note-dialog");
  const area = $("note-text");
  const done = () => {
    dialog.close();
    save(area.value.trim());
  };
  area.value = note;
  onEnter(area, $("note-save"), done);
  dialog.showModal();
  area.focus();
}

export function openGo(find) {
  const dialog = $("go-dialog");
  const input = $("go-row");
  const go = () => {
    if (find(input.value.trim())) dialog.close();
    else $("go-problem").textContent = "No suspect has that row number or id.";
  };
  input.value = "";
  $("go-problem").textContent = "";
  onEnter(input, $("go-now"), go);
  dialog.showModal();
  input.focus();
}

export async function openExport() {
  const place = $("export-result");
  place.replaceChildren(el("p", { class: "dim", text: "Writing…" }));
  $("export-dialog").showModal();
  try {
    const result = await post("/api/export", {}, 600_000);
    const fail = (error) => place.append(el("p", { class: "problem", text: `Download failed: ${error.body?.detail ?? error.message}` }));
    const link = (what, name, words) => {
      const path = `/api/export/${what}`;
      const onclick = (event) => {
        event.preventDefault();
        download(path, name).catch(fail);
      };
      return el("li", {}, el("a", { href: path, onclick, text: `${name}: ${words}` }));
    };
    place.replaceChildren(
      el("p", { text: `${result.decisions} decisions, of which ${result.changed} change the data. The files are in the review folder.` }),
      el("ul", {},
        result.corrected && !result.folder ? link("corrected", result.corrected, "the corrected data") : null,
        result.folder ? el("li", { text: `${result.corrected}: the corrected images, a folder` }) : null,
        link("patch", "patch.csv", "only the changes"),
        link("decisions", "decisions.json", "every decision")),
      result.problem ? el("p", { class: "problem", text: `The corrected data could not be written: ${visible(result.problem)}` }) : "");
  } catch (error) {
    place.replaceChildren(el("p", { class: "problem", text: `Export failed: ${error.body?.detail ?? error.message}` }));
  }
}
