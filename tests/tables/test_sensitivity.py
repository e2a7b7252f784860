"""What an audit owes to its reference: smaller and shifted ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from jaxaudit.evaluate import auc, auc_interval
from jaxaudit.runtime.checks import InputError
from jaxaudit.tables.canonical import content_uniforms
from jaxaudit.tables.sensitivity import (
    SensitivityConfig,
    _along,
    _lowest,
    sensitivity,
    sensitivity_summary,
    shifted_rows,
)

KEY = jax.random.key(0)
MEMBER = np.arange(60) < 30
RNG = np.random.default_rng(0)
X, S = RNG.normal(size=(60, 3)), RNG.normal(size=(50, 3))
R = RNG.normal(size=(80, 3)) * [1.0, 3.0, 1.0]


def score(reference: np.ndarray) -> dict[str, np.ndarray]:
    near = -cdist(X, S).min(axis=1)
    return {"dcr": near, "difference": near + cdist(X, reference).min(axis=1)}


@pytest.fixture(scope="module")
def frame():
    return sensitivity(score, MEMBER, R, SensitivityConfig((0.25, 0.5), (0.5, -0.5), replications=3), KEY, level=0.9)


def test_every_row_is_the_audit_with_that_reference(frame) -> None:
    uniform = content_uniforms(R, jax.random.fold_in(KEY, 2))
    rows = R[np.argsort(uniform)[:40]]
    row = frame.query("attack == 'difference' and kind == 'size' and value == 0.5 and replication == 2").iloc[0]
    scores = score(rows)["difference"]
    assert row["auc"] == pytest.approx(auc(scores, MEMBER), abs=1e-12)
    assert (row["low"], row["high"]) == pytest.approx(auc_interval(scores, MEMBER, 0.9))
    assert row["moved"] == pytest.approx(auc(scores, MEMBER) - auc(score(R)["difference"], MEMBER), abs=1e-12)
    assert row["rows"] == 40


def test_what_is_tried_and_what_it_is_compared_with(frame) -> None:
    # per attack: the whole once and two sizes, and three shifts (0 among them), three times
    assert len(frame) == 2 * (1 + 3 * 2 + 3 * 3)
    whole = frame.query("kind == 'size' and value == 1")
    assert whole["rows"].tolist() == [80, 80]
    assert np.all(whole["moved"] == 0)
    assert np.all(frame.query("kind == 'shift' and value == 0")["moved"] == 0)
    for _, part in frame.query("kind == 'shift'").groupby(["attack", "replication"]):
        by_value = part.set_index("value")["auc"]
        np.testing.assert_allclose(part.set_index("value")["moved"], by_value - by_value[0.0], atol=1e-12)
    assert np.all(frame.query("attack == 'dcr'")["moved"] == 0)  # it does not use the reference
    assert np.ptp(frame.query("attack == 'difference'")["moved"]) > 0


def test_shifts_are_as_large_as_asked_for(frame) -> None:
    for value in (0.5, -0.5):
        realised = frame.query(f"kind == 'shift' and value == {value}")["shift"]
        np.testing.assert_allclose(realised, value, atol=0.06)  # to the grid that one row makes
    assert frame.query("kind == 'shift'")["rows"].eq(40).all()
    place = np.random.default_rng(1).normal(size=500)
    place = (place - place.mean()) / place.std()
    uniform = np.random.default_rng(2).random(500)
    assert shifted_rows(place, uniform, 3.0, 0.5).sum() == 250
    largest = place[shifted_rows(place, uniform, 3.0, 0.5)].mean()  # out of reach: the upper half
    assert largest == pytest.approx(np.sort(place)[250:].mean(), abs=0.01)
    means = [place[shifted_rows(place, uniform, shift, 0.5)].mean() for shift in (0.2, 0.4, 0.6)]
    np.testing.assert_allclose(means, [0.2, 0.4, 0.6], atol=0.01)


def test_tilted_draws_follow_the_tilted_distribution() -> None:
    """A few of many rows, tilted to mean 1: a normal of mean 1 and unchanged spread."""
    rng = np.random.default_rng(3)
    place = rng.normal(size=20_000)
    drawn = place[shifted_rows(place, rng.random(20_000), 1.0, 0.03)]
    assert drawn.mean() == pytest.approx(1.0, abs=0.01)
    assert drawn.std() == pytest.approx(1.0, abs=0.08)
    assert stats.kstest(drawn - 1.0, "norm").pvalue > 0.001


def test_the_direction_is_the_first_principal_one() -> None:
    place = _along(R)
    centred = R - R.mean(axis=0)
    _, _, vt = np.linalg.svd(centred, full_matrices=False)
    assert abs(np.corrcoef(place, centred @ vt[0])[0, 1]) == pytest.approx(1.0)
    assert np.corrcoef(place, R[:, 1])[0, 1] > 0.9  # the loudest column counts as positive
    assert place.std() == pytest.approx(1.0)
    assert np.corrcoef(_along(-R), -place)[0, 1] == pytest.approx(1.0)
    assert np.all(_along(np.ones((5, 2))) == 0)


def test_order_of_rows_and_seed() -> None:
    config = SensitivityConfig((0.5,), (0.5,), replications=2)
    first = sensitivity(score, MEMBER, R, config, KEY)
    again = sensitivity(score, MEMBER, np.random.default_rng(4).permutation(R), config, KEY)
    for column in ("auc", "shift", "moved"):
        np.testing.assert_allclose(again[column], first[column], atol=1e-12)
    assert not np.allclose(sensitivity(score, MEMBER, R, config, jax.random.key(1))["auc"], first["auc"])


def test_smaller_references_are_parts_of_larger_ones() -> None:
    uniform = content_uniforms(R, KEY)
    small, large = _lowest(uniform, 0.25), _lowest(uniform, 0.5)
    assert small.sum() == 20
    assert np.all(large[small])


def test_numbers_of_rows_are_uniform_and_copies_have_their_own() -> None:
    rng = np.random.default_rng(5)
    rows = np.repeat(rng.integers(0, 30, size=(500, 2)).astype(float), 4, axis=0)
    numbers = content_uniforms(rows, KEY)
    assert np.unique(numbers).size == len(rows)
    assert stats.kstest(numbers, "uniform").pvalue > 0.001
    order = rng.permutation(len(rows))
    moved = content_uniforms(rows[order], KEY)
    for part, other in ((numbers < 0.3, moved < 0.3), (numbers > 0.9, moved > 0.9)):
        mine, theirs = rows[part], rows[order][other]
        assert np.array_equal(mine[np.lexsort(mine.T)], theirs[np.lexsort(theirs.T)])
    assert abs(np.corrcoef(numbers, content_uniforms(rows, jax.random.key(1)))[0, 1]) < 0.1
    assert np.array_equal(content_uniforms(np.array([[0.0]]), KEY), content_uniforms(np.array([[-0.0]]), KEY))


def test_summary_and_the_sentence_about_shift() -> None:
    """Non-members from elsewhere: a reference shifted towards them makes the members stand out."""
    x = np.concatenate([np.random.default_rng(6).normal(size=(100, 2)), np.random.default_rng(7).normal(size=(100, 2))])
    x[100:, 0] += 0.8
    r = np.random.default_rng(8).normal(size=(200, 2)) * [1.5, 1.0]
    member = np.arange(200) < 100
    found = sensitivity(
        lambda rows: {"far": cdist(x, rows).min(axis=1), "blind": x[:, 1]},
        member, r, SensitivityConfig(shifts=(0.75,), replications=4), KEY,
    )  # fmt: skip
    rows, sentences = sensitivity_summary(found)
    assert [(row["attack"], row["level"]) for row in rows] == [
        ("far", 0.0), ("blind", 0.0), ("far", 0.75), ("blind", 0.75),
    ]  # fmt: skip
    part = found.query("attack == 'far' and value == 0.75")
    assert rows[2]["moved"] == pytest.approx(part["moved"].mean())
    assert rows[2]["auc_low"] == pytest.approx(part["low"].mean())
    assert rows[2]["auc_low"] < rows[2]["auc"] < rows[2]["auc_high"]
    assert rows[2]["auc_sd"] == pytest.approx(part["auc"].std())
    assert rows[2]["moved"] > 0.02
    assert len(sentences) == 1
    assert sentences[0].startswith("far reads a shifted reference")
    noisy = found.assign(moved=np.where(found["replication"] == 0, 1.0, -0.3))
    assert sensitivity_summary(noisy)[1] == []  # a mean within two standard errors of nothing


def test_settings() -> None:
    assert not SensitivityConfig().given
    assert SensitivityConfig(sizes=(0.5,)).given
    for options, message in (
        ({"sizes": (0.0,)}, "sensitivity.sizes"),
        ({"sizes": (1.5,)}, "sensitivity.sizes"),
        ({"shifts": (5,)}, "sensitivity.shifts"),
        ({"replications": 0}, "sensitivity.replications"),
        ({"keep": 1.0}, "sensitivity.keep"),
    ):
        with pytest.raises(InputError, match=message):
            SensitivityConfig(**options)
    with pytest.raises(InputError, match="reference must have at least 4 rows"):
        sensitivity(score, MEMBER, R[:3], SensitivityConfig((0.5,)), KEY)
    assert sensitivity(score, MEMBER, R, SensitivityConfig(), KEY).empty
