"""Sphinx's settings: `sphinx-build -W tools/docs build/docs` makes the site, warnings are errors."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "microtensor"
copyright = "the authors of microtensor, MIT licence"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "docstrings",
]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

smartquotes = False
nitpicky = True
nitpick_ignore_regex = [
    # types of signatures that are Python's, NumPy's or our own rooms': they have no page here
    ("py:.*", r"(?!microtensor\.|models\.).*"),
    ("py:class", r"microtensor\.\w+\..*"),
    ("myst", r".*/(tests|examples)/.*"),  # README's links to pages of others: their text stays
]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "microtensor"
html_static_path = ["static"]
html_css_files = ["own.css"]
html_show_sphinx = False
html_copy_source = False
