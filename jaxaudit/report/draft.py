"""Writing several files into a folder, all or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxaudit.report.canvas import Picture
from jaxaudit.runtime.checks import InputError

__all__ = ["drafted", "write_json", "write_page", "write_pictures"]


@contextmanager
def drafted(target: Path, names: Sequence[str], optional: Sequence[str] = (), what: str = "folder") -> Iterator[Path]:
    """A hidden folder to write into, whose files move into place when the block ends.

    It lies inside ``target``, since a sibling could be on another file system. Files move in the order of ``names``;
    what they replace is set aside, and put back should a move fail. A failure leaves ``target`` as it was.

    Args:
        target: the folder, absolute; made if absent. Other files in it stay.
        names: files and folders that the block writes.
        optional: those of ``names`` that it may leave out; what an earlier run left under such a name goes.
        what: the name of the folder in a message.

    Raises:
        InputError: the folder is a file or cannot be written.
    """
    missing = [path for path in (target, *target.parents) if not path.exists()]
    try:
        target.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".jaxaudit-", suffix=".part", dir=target))
    except OSError as error:
        raise InputError(f"{what} must be writable, got {target}: {error.strerror}") from None
    try:
        yield draft
        _move(draft, target, names, optional)
    except BaseException:
        shutil.rmtree(missing[-1] if missing else draft, ignore_errors=True)
        raise
    shutil.rmtree(draft)


def _move(draft: Path, target: Path, names: Sequence[str], optional: Sequence[str]) -> None:
    moved: list[str] = []
    aside = draft / "replaced"
    aside.mkdir()
    try:
        for name in names:
            if (target / name).exists():
                os.replace(target / name, aside / name)
            moved.append(name)
            if (draft / name).exists() or name not in optional:
                os.replace(draft / name, target / name)
    except BaseException:
        for name in moved:
            if (target / name).is_dir():
                shutil.rmtree(target / name)
            else:
                (target / name).unlink(missing_ok=True)
            if (aside / name).exists():
                os.replace(aside / name, target / name)
        raise


def write_pictures(pictures: Iterable[Picture], draft: Path) -> None:
    """The folder ``figures`` with one PNG per picture."""
    (draft / "figures").mkdir()
    for picture in pictures:
        (draft / "figures" / f"{picture.name}.png").write_bytes(picture.png)


def write_page(page: str, draft: Path) -> None:
    """``report.html``; characters that UTF-8 has not (lone surrogates) as references."""
    (draft / "report.html").write_bytes(page.encode("utf-8", "xmlcharrefreplace"))


def write_json(content: Any, path: Path) -> None:
    """Strict JSON with sorted keys, from values that ``write.plain`` has made plain."""
    text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
