// From key presses to commands.
//
// A held key counts once (except the arrows), keys in text fields are text, and a key that the focused
// control handles (Space on a button) is left to it.

import { $ } from "./dom.js";

const COMMANDS = {
  k: "keep", r: "relabel", x: "remove", " ": "skip", n: "note", z: "undo", "/": "class",
  e: "evidence", t: "text", s: "spot", f: "filter", g: "go", "?": "help", arrowleft: "back", arrowright: "next",
};
const STORED = "exempla-keys";

export function keysOn() {
  return localStorage.getItem(STORED) !== "off";
}

export function listenToKeys(run) {
  const box = $("keys-on");
  box.checked = keysOn();
  box.addEventListener("change", () => localStorage.setItem(STORED, box.checked ? "on" : "off"));
  document.addEventListener("keydown", (event) => {
    const command = commandOf(event);
    if (!command) return;
    event.preventDefault();
    run(command, event.repeat);
  });
}

function commandOf(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.defaultPrevented) return null;
  if (document.querySelector("dialog[open]")) return null; // dialogs have their own keys
  const key = keyName(event);
  const target = event.target instanceof Element ? event.target : document.body;
  if (key === "escape") return "leave";
  if (target.closest("input, textarea, select, [contenteditable]")) return null;
  if (!keysOn() && key !== "?") return null;
  if (key === " " && target.closest("button, a, summary")) return null;
  const arrows = key.startsWith("arrow");
  if (event.repeat && !arrows) return null;
  if (target.id === "list" && (key === "arrowup" || key === "arrowdown")) return key === "arrowup" ? "back" : "next";
  if (/^[0-9]$/.test(key)) return `digit ${key}`;
  if (key === "z" && event.shiftKey) return "redo";
  if (event.shiftKey && /^[a-z ]$/.test(key)) return null;
  return COMMANDS[key] ?? null;
}

// The letter on the key, or under a non-Latin layout the letter at its place.
function keyName(event) {
  const key = event.key.toLowerCase();
  const place = /^Key([A-Z])$/.exec(event.code ?? "");
  return place && key.length === 1 && key.codePointAt(0) > 127 ? place[1].toLowerCase() : key;
}
