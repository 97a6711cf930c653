// Comfort only: without this script the page says all the same things.
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
  // A print has the columns and the method unfolded; long lists stay in the table beside the page.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details.columns, details.method")) part.open = true;
  });
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
