/* Names for parts of the theme that have none; tables and code that scroll are reached by keyboard. */
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
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
  const named = () => {
    document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code block ${at + 1}`));
  };
  named();
  new MutationObserver(named).observe(document.querySelector(".md-content") ?? document.body, {childList: true, subtree: true});
});
