"""Keys, chunks, devices, the store, progress and checks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxaudit.runtime import checks, chunks, devices, keys, store
from jaxaudit.runtime.checks import InputError
from jaxaudit.runtime.progress import Progress, _union_length


def test_item_keys_do_not_depend_on_where_a_chunk_starts() -> None:
    key = keys.stream_key(7, "draws")
    whole = jax.random.key_data(keys.item_keys(key, 0, 10))
    part = jax.random.key_data(keys.item_keys(key, 6, 3))
    np.testing.assert_array_equal(whole[6:9], part)
    assert len(np.unique(whole, axis=0)) == 10
    other = jax.random.key_data(keys.item_keys(keys.stream_key(8, "draws"), 0, 10))
    assert not (whole == other).any(axis=1).any()


def test_host_streams_differ_by_seed_name_and_item() -> None:
    draws = [keys.host_rng(*where).random() for where in ((0, "a"), (1, "a"), (0, "b"), (0, "a", 1))]
    assert len(set(draws)) == 4


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 100])
def test_chunked_map_equals_vmap_whatever_the_chunk(chunk: int) -> None:
    rows = {"x": jnp.arange(14.0).reshape(7, 2), "y": jnp.arange(7)}
    out = chunks.chunked_map(lambda row: (row["x"].sum(), row["y"] + 1), rows, chunk=chunk)
    np.testing.assert_array_equal(out[0], np.arange(14.0).reshape(7, 2).sum(1))
    np.testing.assert_array_equal(out[1], np.arange(7) + 1)


def test_bucket_and_padding() -> None:
    sizes = [chunks.bucket(n) for n in range(1, 2000)]
    assert all(n <= size < max(33, 1.51 * n) for n, size in zip(range(1, 2000), sizes, strict=True))
    assert len(set(sizes)) < 14
    padded = chunks.pad_rows({"a": np.array([[1], [2]])}, 4)["a"]
    np.testing.assert_array_equal(padded, [[1], [2], [2], [2]])


@pytest.mark.devices
@pytest.mark.parametrize("chunk", [1, 2])
def test_ensemble_map_is_bit_identical_on_any_number_of_devices(chunk: int) -> None:
    def model(item, shared):
        return jnp.tanh(item @ shared).sum(-1)

    shared = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    items = np.random.default_rng(1).normal(size=(8, 3, 5)).astype(np.float32)
    outputs = []
    for count in {1, len(jax.devices())}:
        mapped = devices.ensemble_map(model, devices.ensemble_mesh(count), chunk=chunk)
        outputs.append(np.asarray(jax.jit(mapped)(items, shared)))
    assert all((output == outputs[0]).all() for output in outputs)
    np.testing.assert_allclose(outputs[0], np.tanh(items @ shared).sum(-1), rtol=1e-5)


def test_ensemble_size_is_the_next_multiple() -> None:
    mesh = devices.ensemble_mesh(1)
    assert [devices.ensemble_size(count, mesh, 4) for count in (1, 4, 5)] == [4, 4, 8]


def test_environment_names_backend_and_versions() -> None:
    found = devices.describe()
    assert found["backend"] == jax.default_backend()
    assert found["versions"]["jax"] == jax.__version__
    assert found["device_count"] == len(jax.devices())


def test_digest_depends_on_content_dtype_and_shape_only() -> None:
    one = store.digest({"a": np.arange(4), "b": [1, 2.0, "x", None]})
    assert one == store.digest({"b": [1, 2.0, "x", None], "a": np.arange(4)})
    different = [
        store.digest({"a": np.arange(4).astype(np.int32), "b": [1, 2.0, "x", None]}),
        store.digest({"a": np.arange(4).reshape(2, 2), "b": [1, 2.0, "x", None]}),
        store.digest({"a": np.arange(4), "b": [1, 2.0, "x", 0]}),
        store.digest({"a": np.arange(4), "b": [1, [2.0, "x"], None]}),
    ]
    assert len({one, *different}) == 5


def test_store_round_trip_computes_once_and_survives_a_broken_file(tmp_path: Path) -> None:
    kept = store.Store(tmp_path / "cache")
    calls = []

    def compute() -> dict[str, np.ndarray]:
        calls.append(1)
        return {"x": np.arange(3), "names": np.array(["a", "ß"])}

    first, second = kept.cached("stage", "k", compute), kept.cached("stage", "k", compute)
    assert len(calls) == 1
    np.testing.assert_array_equal(first["names"], second["names"])
    file = tmp_path / "cache" / "stage-k.npz"
    file.write_bytes(file.read_bytes()[:40])
    kept.cached("stage", "k", compute)
    assert len(calls) == 2
    assert [path.name for path in file.parent.iterdir()] == ["stage-k.npz"]


def test_an_entry_under_another_name_or_from_elsewhere_is_absent(tmp_path: Path) -> None:
    kept = store.Store(tmp_path)
    kept.save("stage", "a", {"x": np.arange(3)})
    (tmp_path / "stage-b.npz").write_bytes((tmp_path / "stage-a.npz").read_bytes())
    np.savez(tmp_path / "stage-c.npz", x=np.arange(3))
    (tmp_path / "stage-d.npz").write_bytes(b"")
    assert [kept.load("stage", key) is None for key in "abcd"] == [False, True, True, True]
    assert set(kept.load("stage", "a") or {}) == {"x"}


def test_store_never_loads_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "stage-k.npz", x=np.array([{"a": 1}], dtype=object))
    assert store.Store(tmp_path).load("stage", "k") is None
    with pytest.raises(ValueError, match="bject"):
        store.Store(tmp_path).save("stage", "j", {"x": np.array([{}], dtype=object)})
    assert not (tmp_path / "stage-j.npz").exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.atomic_write(tmp_path / "a.txt", write)
    assert os.listdir(tmp_path) == []


def test_cache_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache\.dir must be a folder"):
        store.Store(tmp_path / "file")


def test_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache\.dir must be a folder that can be written .* got .*file/below"):
        store.Store(tmp_path / "file" / "below").save("stage", "key", {"x": np.arange(3)})


def test_stage_separates_compilation_from_running() -> None:
    progress = Progress()
    with progress.stage("a", 3):
        # a fresh function, so that nothing is cached in this process
        jax.jit(lambda x: jnp.cos(x) @ x + 3.14159)(jnp.ones(17)).block_until_ready()
    with progress.stage("b"):
        time.sleep(0.05)
    assert progress.timings["a"]["compile_s"] > 0.001
    assert progress.timings["a"]["items"] == 3
    assert progress.timings["b"]["compile_s"] == 0
    assert progress.timings["b"]["run_s"] >= 0.05


def test_nested_compilations_count_once() -> None:
    assert _union_length([(0, 2), (1, 2), (1.5, 3), (5, 6)]) == 4
    assert _union_length([(0, 10), (1, 2), (3, 4)]) == 10
    assert _union_length([]) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.check_int("k", 500, 1, 200), "k must be in [1, 200], got 500"),
        (lambda: checks.check_int("k", True, 1), "k must be an integer, got True"),
        (lambda: checks.check_int("k", 2.0, 1), "k must be an integer, got 2.0"),
        (lambda: checks.check_int("k", 0, 1), "k must be 1 or more, got 0"),
        (lambda: checks.check_real("ratio", 1.0, 0, 1, open_high=True), "ratio must be in [0, 1), got 1.0"),
        (lambda: checks.check_real("ratio", 0, 0, 1, open_low=True), "ratio must be in (0, 1], got 0"),
        (lambda: checks.check_real("ratio", float("nan"), 0), "ratio must be a finite number, got nan"),
        (lambda: checks.check_choice("rule", "c", ("b", "a")), "rule must be one of a, b, got c"),
        (lambda: checks.check_finite("x", [1, np.nan, np.inf]), "x must have only finite values, got 2 that are not"),
        (lambda: checks.require(False, "x", "be short", "a\nb"), "x must be short, got a b"),
    ],
)  # fmt: skip
def test_messages_name_argument_rule_and_value(call, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message


def test_limits_of_intervals_are_inside() -> None:
    assert checks.check_int("k", np.int64(1), 1, 1) == 1
    assert checks.check_real("x", 0, 0, 1) == 0.0
    assert checks.check_real("x", np.float32(1), 0, 1) == 1.0
