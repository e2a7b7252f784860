"""From a page's blocks to one HTML file: no script, no external address, every string escaped by the template."""

from __future__ import annotations

import base64
import re
from importlib import resources

import jinja2
from markupsafe import Markup

from jaxaudit.report.words import Page

__all__ = ["render_page"]


def render_page(page: Page, footer: str) -> str:
    """A complete HTML document.

    Args:
        page: what it says; its pictures are embedded.
        footer: the closing line, plain text.
    """
    folder = resources.files("jaxaudit.report")
    loader = jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    engine = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    engine.filters["embed"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode()
    engine.filters["glue"] = _glue
    engine.filters["breaks"] = _breaks
    engine.tests["instance"] = lambda block, name: type(block).__name__ == name
    css = Markup(folder.joinpath("style.css").read_text(encoding="utf-8"))
    return engine.get_template("report.html.jinja").render(page=page, css=css, footer=footer)


def _glue(text: str) -> str:
    """No line break inside an interval or before a percent sign; still plain text, escaped later."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\d,) (?=[−\d.]+\])", "\u00a0", text)


def _breaks(text: str) -> Markup:
    """The text, escaped, with permission to break a long name after an underscore."""
    return Markup("_<wbr>").join(text.split("_"))
