// Building the page. Data enters only as text nodes and plain attributes: never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Bidirectional overrides, embeddings and isolates can make one text look like another ("spam" like
// "maps"), so they are shown by code point and have no effect. What is sent and exported is unchanged.
const CONTROLS = /[\u202a-\u202e\u2066-\u2069]/g;
export const visible = (text) =>
  String(text).replace(CONTROLS, (control) => `[U+${control.charCodeAt(0).toString(16).toUpperCase()}]`);

// Data inside a sentence, isolated so that right-to-left letters affect nothing around them: as an
// element, or as a string between isolating characters.
export const data = (text) => el("bdi", { text: visible(text) });
export const isolated = (text) => `\u2068${visible(text)}\u2069`;

// A probability in whole per cent, never 0 or 100; exempla/report/words.py has the same function.
export const chance = (p) => (p > 0.99 ? "> 99 %" : p < 0.01 ? "< 1 %" : `${Math.floor(100 * p + 0.5)} %`);
export const short = (x) => (Math.abs(x) >= 0.005 ? x.toFixed(2) : "0.00");

// The text with its decisive words marked. An entry may be several words ("click here"); upper and
// lower case match, parts of longer words do not. `meaning` gives class and title by the weight's sign.
export function marked(text, words, meaning) {
  const weights = new Map(words.map(([word, weight]) => [normal(word), weight]));
  weights.delete("");
  const out = document.createDocumentFragment();
  if (!weights.size) {
    out.append(visible(text));
    return out;
  }
  const longestFirst = [...weights.keys()].sort((a, b) => b.length - a.length);
  const choices = longestFirst.map((word) => word.split(" ").map(escaped).join("[^\\p{L}\\p{N}]+"));
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${choices.join("|")})(?![\\p{L}\\p{N}])`, "giu");
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    const weight = weights.get(normal(match[0])) ?? 0;
    const [says, title] = meaning[weight > 0 ? "positive" : "negative"];
    out.append(visible(text.slice(from, match.index)));
    out.append(el("mark", { class: says, text: visible(match[0]), title }));
    from = match.index + match[0].length;
  }
  out.append(visible(text.slice(from)));
  return out;
}

const normal = (word) => word.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean).join(" ");
const escaped = (word) => word.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
