"""Our docstrings as reStructuredText, and what stands in `backticks` as links: an extension of Sphinx.

A docstring is a sentence or an equation, paragraphs, lines "name: …" for arguments, then Shapes:, Raises: and
Source:, then doctests (see tests/test_docstrings.py). None of it is markup, so all of it is escaped.
"""

from __future__ import annotations

import builtins
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc, pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import microtensor
from microtensor.engine import Op
from microtensor.functions import METHODS

DOCS = Path(__file__).resolve().parent
PAGES = {"guide": DOCS.parents[1] / "README.md", "gallery": DOCS.parents[1] / "examples/gallery/README.md"}
LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")
SECTION = re.compile(r"(Shapes|Initial values|Raises|Returns|Warns|Source): +(.*)")
ARGUMENTS = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): +(.*)")
SPECIAL = re.compile(r"([\\*_|<>\[\]])")


def to_rst(lines: list[str], arguments: Iterable[str]) -> Iterator[str]:
    """The lines of a docstring as lines of reStructuredText."""
    known = set(arguments)
    for block in "\n".join(lines).strip().split("\n\n"):
        if block.startswith((">>>", " ")):
            yield from ("", *block.split("\n"), "")
            continue
        for name, text in parts(block.split("\n"), known):
            yield from ("", *entry(name, inline(text)))
        yield ""


def entry(name: str, text: str) -> tuple[str, ...]:
    """A section is a field, an argument the term that its text defines."""
    if not name:
        return (text,)
    return (f":{name}: {text}",) if name[0].isupper() else (f"``{name}``", f"   {text}")


def parts(lines: list[str], arguments: set[str]) -> Iterator[tuple[str, str]]:
    """A paragraph's parts: (name of a section or an argument, its text); "" for what has no name."""
    name, text = "", ""
    for line in lines:
        found = SECTION.match(line) or ARGUMENTS.match(line)
        if found and (found[1][0].isupper() or set(found[1].split(", ")) <= arguments):
            if text:
                yield name, text
            name, text = found[1], found[2]
        else:
            text = f"{text} {line.strip()}".strip()
    if text:
        yield name, text


def inline(text: str) -> str:
    """Text with nothing special in it but what stands in backticks, which is code."""
    plain, code = text.split("`")[::2], text.split("`")[1::2]
    escaped = [SPECIAL.sub(r"\\\1", piece) for piece in plain]
    first = escaped[0] if escaped[0][:1].isalnum() or not escaped[0] else "\\" + escaped[0].removeprefix("\\")
    rest = (f"\\ ``{c}``\\ {p}" for c, p in zip(code, escaped[1:], strict=True))
    return (first + "".join(rest)).removeprefix("\\ ")


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What autodoc asks for each docstring: rewrite the lines."""
    if what == "function" and name.removeprefix("microtensor.") in METHODS:
        method = name.removeprefix("microtensor.")
        lines[:] = [*to_rst(lines[:1], ()), f"As a function: see ``Tensor.{method}``."]
        return
    try:
        arguments = list(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        arguments = []
    lines[:] = to_rst(lines, arguments)


def process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A method as a function takes a tensor called input."""
    if what == "function" and signature and name.removeprefix("microtensor.") in METHODS:
        signature = re.sub(r"\(self(: [^,)]*)?", "(input: ~microtensor.Tensor", signature)
    return signature, result


class Public(SphinxDirective):
    """`{public} microtensor.nn`: a table of a module's public names, then each with its docstring."""

    required_arguments = 1
    optional_arguments = 100  # names to leave out

    def run(self) -> list[nodes.Node]:
        """The nodes of the table and of autodoc."""
        module, *left_out = self.arguments
        found = import_module(module)
        names = getattr(found, "__all__", None) or [
            n for n, thing in vars(found).items() if type(thing) is Op
        ]
        shown = [name for name in names if name not in left_out and has_docstring(found, name)]
        text = [f".. automodule:: {module}", "   :no-members:", "", f".. currentmodule:: {module}", ""]
        text += [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in shown), ""]
        for name in shown:
            thing = getattr(found, name)
            kind = "class" if inspect.isclass(thing) else "data" if isinstance(thing, Op) else "function"
            option = {"class": "   :members:", "data": "   :no-value:"}.get(kind, "")
            text += [f".. auto{kind}:: {name}", option, ""]
        return self.parse_text_to_nodes("\n".join(("``````{eval-rst}", *text, "``````")))


def has_docstring(module: Any, name: str) -> bool:
    """Is it a function or a class, and one of ours? What NumPy and Python bring stands in a page's text."""
    thing = getattr(module, name)
    ours = str(getattr(thing, "__module__", "")).partition(".")[0] in ("microtensor", "models")
    return callable(thing) and ours


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """The guide and the gallery are README files; what they link to is a page here, or to be downloaded."""
    if (file := PAGES.get(docname)) is not None:
        app.env.note_dependency(str(file))
        pages = {str(path): f"{name}.md" for name, path in PAGES.items()}

        def from_here(link: re.Match[str]) -> str:
            target = os.path.normpath(file.parent / link[1])
            return f"]({pages.get(target) or Path(os.path.relpath(target, DOCS)).as_posix()})"

        source[0] = LINK.sub(from_here, file.read_text(encoding="utf-8"))


def forget_sourceless(app: Sphinx) -> list[Any]:
    """Python's own modules have no page of source, and shall not be listed among those that have one."""
    modules: dict[str, Any] = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, source in modules.items() if not source]:
        del modules[name]
    return []


def mend(app: Sphinx, doctree: nodes.document) -> None:
    """`int` in a signature is Python's, not `mt.int`; the empty line that ends a doctest is not shown."""
    for reference in doctree.findall(pending_xref):
        if hasattr(builtins, reference["reftarget"]):
            reference["py:module"] = None
            reference.attributes.pop("refspecific", None)
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip("\n")
        block[:] = [nodes.Text(block.rawsource)]


def link_code(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """`Linear`, `nn.Linear`, `mt.nn.Linear` and `Linear(3, 4)` in a text become links to its entry."""
    objects = app.env.domains.python_domain.objects
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        name = re.sub(r"^mt\.|\(.*\)$", "", literal.astext())
        for scope in scopes(literal):
            entry = objects.get(f"{scope}{name}")
            if entry and not (entry.docname == docname and scope.endswith(f".{name}.")):
                link = make_refnode(app.builder, docname, entry.docname, entry.node_id, literal.deepcopy())
                literal.parent.replace(literal, link)
                break


def scopes(node: nodes.Node) -> Iterator[str]:
    """Where a name may be from: the class and the module it is used in, then all that is public."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, desc):
            path = node[0].get("module", ""), *node[0].get("fullname", "").split(".")
            yield from (".".join(path[:n]) + "." for n in range(len(path), 0, -1))
    yield from ("", *(f"microtensor.{room}" for room in ("", "Tensor.", "nn.", "nn.functional.", "optim.")))
    yield from ("microtensor.data.", "microtensor.testing.", "microtensor.train.", "models.")


def setup(app: Sphinx) -> dict[str, Any]:
    """What Sphinx calls when it loads the extension."""
    app.add_directive("public", Public)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("source-read", read_page)
    app.connect("html-collect-pages", forget_sourceless, priority=100)  # before viewcode's
    app.connect("doctree-read", mend)
    app.connect("doctree-resolved", link_code)
    return {"version": microtensor.__version__, "parallel_read_safe": True, "parallel_write_safe": True}
