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
