"""What MkDocs does not do by itself: pages that lie outside of ``docs/``, links between both, and generated pages.

The files stay where readers of the repository expect them. A link that leaves ``docs/`` leads to the page of that file, or
to a copy of it. A link that leads nowhere is left as it is: MkDocs warns, and ``make docs`` fails.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "SEMANTICS.md": "semantics.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the repository's root, and the pages that they are."""

DIRECTORIES: Final = {"docs/adr": "adr/index.md", "docs/guide": "guide/run.md"}
COPIES: Final = "repository"
"""Folder of the site with copies of other files that pages link to."""

LINK: Final = re.compile(
    r"(?P<before>\]\(|(?:src|srcset|href)=\")(?P<target>[^)\"#\s]+)(?P<anchor>#[^)\"\s]*)?(?P<after>[)\"])"
)
PICTURE: Final = re.compile(
    r"<picture>\s*<source[^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\"[^>]*src=\"(?P<light>[^\"]+)\"[^>]*>\s*</picture>"
)
"""GitHub's way to show one of two pictures; the theme has its own, which follows its own switch."""


def _sibling(name: str) -> ModuleType:
    """Return a module of this folder. MkDocs runs this file alone, not as part of a package."""
    spec = importlib.util.spec_from_file_location(f"prefeed_docs_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _sibling("reference")


# ---------------------------------------------------------------- navigation


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that follow from files, and add guides that it does not name."""
    assert config.nav is not None
    adrs = sorted((ROOT / "docs" / "adr").glob("*.md"))
    _section(config.nav, "Project", "Decisions").extend(["adr/index.md", *(f"adr/{path.name}" for path in adrs)])
    _section(config.nav, "Reference", "API").extend(reference.pages(ROOT))
    guides = _section(config.nav, "Guides")
    named = str(config.nav)
    guides += [f"guide/{p.name}" for p in sorted((ROOT / "docs" / "guide").glob("*.md")) if p.name not in named]
    return config


def _section(nav: list[Any], *titles: str) -> list[Any]:
    for title in titles:
        nav = next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)
    return nav


# ---------------------------------------------------------------- pages and copies


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, the generated ones, and copies of what they link to."""
    generated = {page: (ROOT / name).read_text() for name, page in PAGES.items()}
    generated["adr/index.md"] = _decisions()
    generated |= reference.pages(ROOT)
    for uri, text in generated.items():
        files.append(File.generated(config, uri, content=text))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    sources |= {name: generated[page] for name, page in PAGES.items()}
    for source, text in sources.items():
        for link in LINK.finditer(text):
            path = _resolved(source, link["target"])
            if path is not None and path not in PAGES and not path.startswith("docs/") and (ROOT / path).is_file():
                uri = f"{COPIES}/{path}"
                if uri not in files.src_uris:
                    files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def _decisions() -> str:
    """Return a page with a line per decision."""
    lines = [
        "# Decisions",
        "",
        "A choice that is costly to undo has a page: context, decision with numbers, consequences.",
        "",
    ]
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        title = path.read_text().splitlines()[0].removeprefix("#").strip()
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- links


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the repository links of the site."""
    uri = page.file.src_uri
    source = next((name for name, at in PAGES.items() if at == uri), f"docs/{uri}")

    def replaced(link: re.Match[str]) -> str:
        target = _in_site(source, uri, link["target"])
        return f"{link['before']}{target}{link['anchor'] or ''}{link['after']}"

    markdown = LINK.sub(replaced, markdown)
    return PICTURE.sub(r"![\g<alt>](\g<light>#only-light)\n![\g<alt>](\g<dark>#only-dark)", markdown)


def _resolved(source: str, target: str) -> str | None:
    """Return the path in the repository that a link of a file means; None for addresses of other sites."""
    if ":" in target or target.startswith("/"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _in_site(source: str, uri: str, target: str) -> str:
    """Return what a link is on the page ``uri``; what leads nowhere stays as it is."""
    path = _resolved(source, target)
    if path is None:
        return target
    if path in PAGES or path in DIRECTORIES:
        found = PAGES.get(path) or DIRECTORIES[path]
    elif path.startswith("docs/"):
        found = path.removeprefix("docs/")
    elif (ROOT / path).is_file():
        found = f"{COPIES}/{path}"
    else:
        return target
    return posixpath.relpath(found, posixpath.dirname(uri) or ".")


# ---------------------------------------------------------------- what is shown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let corners of tables without a heading be cells: to a screen reader an empty heading is a mistake."""
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
