"""Build of the documentation: KaTeX from node_modules, Sphinx roles of docstrings as Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

KATEX = Path(__file__).parents[2] / "node_modules" / "katex" / "dist"


def on_files(files: Files, *, config: Any) -> Files:
    """Add KaTeX to the site: pages ask no other host for anything."""
    if not KATEX.is_dir():
        raise PluginError("KaTeX is not installed: run make node_modules (needs npm)")
    found = [KATEX / "katex.min.css", KATEX / "katex.min.js", KATEX / "contrib/auto-render.min.js"]
    for path in [*found, *KATEX.glob("fonts/*.woff2")]:
        name = f"assets/katex/{path.relative_to(KATEX)}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def as_markdown(text: str) -> str:
    """Sphinx's math and cross references as Markdown."""
    block = re.compile(r"^( *)\.\. math::\n((?:\1 +.*\n?|\s*\n)+)", re.MULTILINE)

    def formula(found: re.Match[str]) -> str:
        lines = [line.strip() for line in found[2].strip().splitlines()]
        body = "\n".join(found[1] + line for line in lines)
        return f"{found[1]}$$\n{body}\n{found[1]}$$\n\n"

    text = block.sub(formula, text + "\n")
    text = re.sub(r":math:`([^`]*)`", lambda found: f"\\({found[1]}\\)", text, flags=re.DOTALL)
    text = re.sub(r":\w+:`~?([^`]*)`", lambda found: f"`{found[1].split('.')[-1]}`", text)
    # Griffe knows a section of examples by its plural.
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return text.replace("``", "`").rstrip()


class SphinxRoles(griffe.Extension):
    """Docstrings as the rest of the site is written."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
