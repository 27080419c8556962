"""Build of the documentation.

KaTeX comes from node_modules, Sphinx roles of docstrings become Markdown, the notebooks of
``examples/`` become pages, and the marker ``<!-- options of NAME -->`` becomes the options of a
command.
"""

from __future__ import annotations

import base64
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from fairmp.training import defaults

ROOT = Path(__file__).parents[2]
KATEX = ROOT / "node_modules" / "katex" / "dist"
WIDTH = 100  # characters of a line of code that fit the page
HOVER = (  # terms that are explained on every page where the pointer rests on them
    *("ΔDP", "ΔEO", "sampling floor", "per-node prediction", "batch prediction"),
    *("plain propagation", "topology bias", "base rate", "out of fold"),
)
BOOST = {  # pages that people look for by a single word
    "install.md": 3,
    "reference/commands.md": 3,
    "how-to/no-group.md": 4,
    "how-to/criterion.md": 2,
    "reference/analysis.md": 0.3,
    "reference/layers.md": 0.5,
    "reference/postprocessing.md": 0.5,
    "postprocessing.md": 0.5,
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add KaTeX, so that pages ask no other host for anything, and the changelog."""
    if not KATEX.is_dir():
        raise PluginError("KaTeX is not installed: run make node_modules (needs npm)")
    found = [KATEX / "katex.min.css", KATEX / "katex.min.js", KATEX / "contrib/auto-render.min.js"]
    for path in [*found, *KATEX.glob("fonts/*.woff2")]:
        name = f"assets/katex/{path.relative_to(KATEX)}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        for name, content in notebook_files(path).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """The page of an executed notebook, and its pictures, by file name."""
    pictures: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            content = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in content:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(content["image/png"])
                parts.append(f"![{cell['metadata']['alt']}]({name})")
            elif "text/markdown" in content:
                parts.append(content["text/markdown"])
            elif "text/html" in content:
                parts.append(plain_html(content["text/html"]))
            else:
                text = content.get("text/plain") or "".join(output.get("text", ""))
                parts.append(f"```text\n{wrapped(text)}\n```")
    return {**pictures, f"{path.stem}.md": "\n\n".join(parts)}


def wrapped(text: str) -> str:
    """Lines of an output, broken where they do not fit the page."""
    lines = text.rstrip().splitlines()
    return "\n".join(textwrap.fill(line, WIDTH) if len(line) > WIDTH else line for line in lines)


def plain_html(text: str) -> str:
    """HTML of a notebook's output, in the style of the site's tables."""
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:border|class|style)="[^"]*"', "", text)
    text = re.sub(r"\s*\n\s*", "", text)
    return f"<div>{text}</div>"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in the options of commands, and define the terms of the glossary."""
    if page.file.src_uri in BOOST:
        page.meta["search"] = {"boost": BOOST[page.file.src_uri]}
    # Prompts and output have a class of their own, which copying leaves out.
    markdown = markdown.replace("```python\n>>> ", "```pycon\n>>> ")
    filled = re.sub(r"<!-- options of ([\w ]+) -->", lambda match: options_of(match[1]), markdown)
    if page.file.src_uri == "glossary.md":
        return filled
    return f"{filled}\n\n{abbreviations()}"


def abbreviations() -> str:
    """The terms of the glossary that pages explain, in the syntax of Python-Markdown."""
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", glossary, flags=re.MULTILINE))
    return "\n".join(f"*[{term}]: {rows[term]}" for term in HOVER)


def options_of(name: str) -> str:
    """What a command is for, and a table of its arguments and options for each group of them."""
    from fairmp.cli import program

    words = name.split()
    command: Any = typer.main.get_command(program(words[0]))
    for word in words:
        command = command.commands[word]
    tables: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.name in ("help", "help_all"):
            continue
        is_option = parameter.opts[0].startswith("-")
        title = getattr(parameter, "rich_help_panel", None) or "Options"
        spelling = " / ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
        if not is_option:
            title, spelling = "Arguments", f"`{parameter.name.upper()}`"
        text = " ".join((parameter.help or "").split()).replace("|", "\\|")
        row = f"| {spelling} | {_default(parameter)} | {text} |"
        tables.setdefault(title, []).append(row)
    head = "| | default | |\n| --- | --- | --- |"
    parts = [f"**{title}**\n\n{head}\n" + "\n".join(rows) for title, rows in tables.items()]
    return "\n\n".join([command.help or "", *parts])


def _default(parameter: Any) -> str:
    """The default of a parameter as one would type it."""
    default = parameter.default
    if parameter.required:
        return "*required*"
    if default is None or default == "" or callable(default):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    values = default if isinstance(default, list | tuple) else [default]
    return " ".join(f"`{value}`" for value in values)


def one_name_per_line(text: str) -> str:
    """Repeat the description of arguments that share one, as in ``lr, weight_decay: …``."""
    entry = re.compile(r"^( +)(\w+(?:, \w+)+)(: .*\n(?:\1 +.*\n)*)", re.MULTILINE)

    def repeated(match: re.Match[str]) -> str:
        return "".join(f"{match[1]}{name}{match[3]}" for name in match[2].split(", "))

    return entry.sub(repeated, text + "\n")


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
            obj.docstring.value = as_markdown(one_name_per_line(obj.docstring.value))

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show the defaults of a classifier as values."""
        name = str(attr.value).removeprefix("defaults.")
        if attr.value is not None and str(attr.value) == f"defaults.{name}":
            attr.value = repr(getattr(defaults, name))
