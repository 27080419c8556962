// Formulas that Python-Markdown marked, by the KaTeX that lies next to this page.
document$.subscribe(({body}) => {
  renderMathInElement(body, {
    delimiters: [
      {left: "$$", right: "$$", display: true},
      {left: "\\[", right: "\\]", display: true},
      {left: "\\(", right: "\\)", display: false},
    ],
    throwOnError: false,
    strict: false,  // docstrings have Unicode symbols
  });
});

// The theme gives its search dialogue no name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// Tables and formulas that scroll sideways, as on a phone, can be scrolled by keyboard.
function labelScrollers() {
  for (const element of document.querySelectorAll(".md-typeset__scrollwrap, div.arithmatex")) {
    if (element.scrollWidth > element.clientWidth) {
      element.tabIndex = 0;
      element.setAttribute("role", "group");
      element.setAttribute("aria-label", "Scrolls sideways");
    } else {
      ["tabindex", "role", "aria-label"].forEach((name) => element.removeAttribute(name));
    }
  }
}
document$.subscribe(() => requestAnimationFrame(labelScrollers));
["load", "resize"].forEach((event) => window.addEventListener(event, labelScrollers));
