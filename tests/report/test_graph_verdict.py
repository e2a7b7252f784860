"""The graph page's verdict follows the evidence, also where models failed or hardly any node shows it."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from jaxaudit.report.canvas import Picture
from jaxaudit.report.html import render

BLANK = [Picture(name, "caption", "alt", b"png") for name in ("limits", "error_plane", "who_leaks", "prior_and_model")]


def changed(result, **changes):
    summary = copy.deepcopy(result.summary)
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = summary
        for parent in parents:
            node = node[parent]
        node[last] = value
    return dataclasses.replace(result, summary=summary)


@pytest.mark.parametrize(
    ("changes", "words", "never"),
    [
        ({}, "reveals which nodes it was trained on", "Weak evidence"),
        ({"shadows__not_finite": 64}, "the models did not train", "reveals which nodes"),
        ({"limits__share_r_above_0.1": 0.04}, "Weak evidence", "reveals which nodes it was trained on"),
        ({"sampling__prior_exact": False}, "the prior&#39;s lower limit is used", "always draws them"),
        ({"sampling__prior_exact": True}, "always draws them", "lower limit is used"),
    ],
)
def test_verdict(graph, environment, changes, words, never):
    page = render(changed(graph, **changes), BLANK, environment)
    assert words in page
    assert never not in page
