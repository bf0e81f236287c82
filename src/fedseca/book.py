"""What a running federation keeps on disk: the audit of every round, and a checkpoint from which it goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from fedseca.audit import (
    AUDIT_FILE,
    Anchored,
    AnchorError,
    Audit,
    FileAnchor,
    Place,
    anchored_lines,
    make_anchor,
    write_note,
)
from fedseca.checkpoint import CHECKPOINT, read_checkpoint, whole_number
from fedseca.errors import FolderBusy, InputError, StateError
from fedseca.files import take_lock
from fedseca.reading import as_tensor
from fedseca.rounds import Played
from fedseca.server import Server

_LOCK = ".lock"
_LOG = logging.getLogger("fedseca")


class Book:
    """The audit and the checkpoint of one training, each in a folder if it is wanted; open for this process alone."""

    def __init__(
        self,
        server: Server,
        audit_dir: str | Path | None,
        checkpoint_dir: str | Path | None,
        *,
        anchor: Place | None = None,
    ) -> None:
        """`anchor` gets the end of the audit after every round: a file on other storage, or a command."""
        self.server = server
        self.audit_dir, self.checkpoint_dir = (None if d is None else Path(d) for d in (audit_dir, checkpoint_dir))
        for name, folder in (("audit_dir", self.audit_dir), ("checkpoint_dir", self.checkpoint_dir)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise InputError(f"{name} must be a folder; found the file {folder}")
        self.anchor = None if anchor is None else make_anchor(anchor)
        if self.anchor is not None and self.audit_dir is None:
            raise InputError("anchor keeps the end of the audit, and there is none: give audit_dir as well")
        inside = [] if not isinstance(self.anchor, FileAnchor) else self.anchor.path.resolve().parents
        if self.audit_dir is not None and self.audit_dir.resolve() in inside:
            raise InputError(
                "anchor must be outside of audit_dir, best on other storage: whoever can rewrite the audit could "
                f"rewrite it too; found {self.anchor}"
            )
        self._not_anchored: str | None = None
        """Why the anchor did not take the end of the last round, if it did not."""
        self._audit: Audit | None = None
        self._stack = ExitStack()
        self._settings: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # what was opened is closed if the next cannot be
            if self.audit_dir is not None:
                self._audit = stack.enter_context(Audit(self.audit_dir / AUDIT_FILE))
            if self.checkpoint_dir is not None:
                stack.enter_context(_alone_in(self.checkpoint_dir))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._audit = None
        self._stack.close()

    def resume(self, settings: Mapping[str, Any], initial: Mapping[str, Any]) -> tuple[int, dict[str, Tensor] | None]:
        """How many rounds are done, and the model after them; None if nothing was kept.

        The server and the audit are put back to where they were. `settings` are what must be the same when a training
        goes on, beside the rule. Of a new training the `initial` model is kept before anybody is asked: a kill in
        round 1 must not leave lines in the audit that are written again. An anchor that does not take the end of the
        audit, or knows another one, is an `AuditError`: now nothing is lost by it.
        """
        self._settings = dict(settings)
        if self._audit is None or self.anchor is None:
            return self._restore(initial)
        done, model = self._restore(initial, anchored=anchored_lines(self._audit.path, self.anchor))
        try:
            self.anchor.put(self._end_after(done))
        except AnchorError as problem:
            raise AnchorError(f"{problem}; mend it, or give another anchor; nothing was trained yet") from None
        write_note(self._audit.path, self.anchor)
        return done, model

    def _restore(self, initial: Mapping[str, Any], *, anchored: int = 0) -> tuple[int, dict[str, Tensor] | None]:
        """From the checkpoint, if there is one."""
        path = None if self.checkpoint_dir is None else self.checkpoint_dir / CHECKPOINT
        if path is None or not path.exists():
            self._keep(0, initial)
            return 0, None
        try:
            found = read_checkpoint(path)
            self.server.restore(found)
            model = {name: found.parts["model"][name] for name in found.manifest["names"]}
            for name, value in self._settings.items():
                if found.manifest["settings"][name] != value:
                    raise StateError(f"{path}: is of another {name}")
            done, head = whole_number(found.manifest["round"]), found.manifest["audit"]
            if self.server.round > done or model.keys() != found.parts["model"].keys():
                raise ValueError("its parts are not of the same round or model")
        except StateError as problem:
            raise StateError(f"{problem}; give another checkpoint_dir to begin anew") from None
        except (KeyError, TypeError, ValueError) as problem:
            raise StateError(
                f"{path}: cannot be resumed ({problem!r}); give another checkpoint_dir to begin anew"
            ) from None
        if self._audit is not None and head is not None:
            self._audit.cut_back(head, done + 1, done + 1, anchored=anchored)
        return done, model

    def _end_after(self, number: int) -> Anchored:
        assert self._audit is not None
        return Anchored(_now(), number, self._audit.lines, self._audit.head)

    def write(self, number: int, played: Played, **said: Any) -> None:
        """A round: its lines in the audit, with what else is said of it; then the checkpoint; then the anchor.

        The anchor comes last: a round that is not kept is played again, and then its lines are others. If it does not
        take the end of this round, that is written down with the next; the training goes on, for its rounds cost days
        of many sites, and the next line that the anchor takes covers all that stands before it.
        """
        if self._audit is not None:
            when = {"time": _now(), **said, "round": number}
            missed = [] if self._not_anchored is None else [{"client": None, "not_anchored": self._not_anchored}]
            self._audit.append({**when, **record} for record in [*played.records(), *missed])
        self._keep(number, played.model)
        self._not_anchored = None
        if self._audit is not None and self.anchor is not None:
            try:
                self.anchor.put(self._end_after(number))
            except AnchorError as problem:
                self._not_anchored = f"round {number}: {problem}"
                _LOG.warning("THE AUDIT IS NOT ANCHORED after round %s: %s", number, problem)

    def _keep(self, number: int, arrays: Mapping[str, Any]) -> None:
        """A checkpoint after a round, if one is wanted."""
        if self.checkpoint_dir is None:
            return
        # Copies: two names may stand for one array, which the format does not know.
        model = {name: as_tensor(value).clone() for name, value in arrays.items()}
        manifest = {
            "round": number,
            "audit": None if self._audit is None else self._audit.head,
            "names": list(model),  # the format keeps no order
            "settings": dict(self._settings),
        }
        self.server.keep(self.checkpoint_dir / CHECKPOINT, manifest, {"model": model})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other server keeps its checkpoints there meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as file:
        if not take_lock(file, wait=False):
            raise FolderBusy(
                f"{folder}: another server keeps its checkpoints there; wait for its end or choose another"
            )
        yield
