/* Names for parts of the theme that have none, and tables that scroll are reached by keyboard. */
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const nav of document.querySelectorAll(".md-nav[aria-labelledby]")) {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"));
    const page = label?.parentElement.querySelector("a");
    if (page && !label.textContent.trim()) {
      nav.removeAttribute("aria-labelledby");
      nav.setAttribute("aria-label", page.textContent.trim());
    }
  }
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
  }
});
