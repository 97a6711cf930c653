// Conveniences only: without this script the page has the same content.
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.getElementById("print").addEventListener("click", () => print());
  // Unfold everything for printing.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  const cells = [...document.querySelectorAll(".matrix .cell")];
  for (const section of document.querySelectorAll(".searched")) listen(section);
  enlarge();

  // Search, sort, and filter by a cell of the matrix.
  function listen(section) {
    const items = [...section.querySelectorAll(":scope > .item, :scope > .grid > .item")];
    const input = section.querySelector("input[type=search]");
    const all = section.querySelector(".all");
    let cell = null;
    const show = () => {
      const wanted = input.value.trim().toLowerCase();
      let shown = 0;
      for (const item of items) {
        const fits = (!wanted || item.textContent.toLowerCase().includes(wanted))
          && (!cell || (item.dataset.true === cell.dataset.true && item.dataset.predicted === cell.dataset.predicted));
        item.classList.toggle("gone", !fits);
        shown += fits;
      }
      for (const other of cells) if (section.querySelector(".comparison")) other.setAttribute("aria-pressed", String(other === cell));
      all.hidden = !wanted && !cell;
      const what = cell ? `true ${cell.dataset.true}, predicted ${cell.dataset.predicted}: ` : "";
      section.querySelector(".count").textContent = all.hidden ? "" : `${what}${shown} of ${items.length} shown`;
    };
    input.addEventListener("input", show);
    all.addEventListener("click", () => {
      input.value = "";
      cell = null;
      show();
    });
    section.querySelector("select")?.addEventListener("change", (event) => {
      const key = event.target.value;
      const value = (item) => item.dataset[key];
      const order = {
        weight: (a, b) => value(b) - value(a),
        label: (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true }) || a.dataset.rank - b.dataset.rank,
      }[key] ?? ((a, b) => value(a) - value(b));
      items[0]?.parentElement.append(...[...items].sort(order));
    });
    if (section.querySelector(".comparison")) {
      for (const each of cells) {
        each.addEventListener("click", () => {
          cell = cell === each ? null : each;
          show();
          section.scrollIntoView({ behavior: "smooth" });
        });
      }
    }
  }

  // A click on a card shows it large.
  function enlarge() {
    const dialog = document.getElementById("enlarged");
    dialog.querySelector("button").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    document.querySelector("main").addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (!card || event.target.closest("summary, a, button, input") || String(getSelection())) return;
      const copy = card.cloneNode(true);
      for (const part of copy.querySelectorAll("details")) part.open = true;
      dialog.querySelector("div").replaceChildren(copy);
      dialog.showModal();
    });
  }
  const copy = document.getElementById("copy");
  if (copy) copy.addEventListener("click", async () => {
    const text = document.getElementById("command").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById("command"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = "copy"; }, 1500);
  });
})();
