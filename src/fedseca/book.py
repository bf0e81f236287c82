"""What a running federation keeps on disk: the audit of every round, and a checkpoint from which it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from fedseca.audit import AUDIT_FILE, Audit
from fedseca.checkpoint import CHECKPOINT, read_checkpoint, whole_number
from fedseca.errors import FolderBusy, InputError, StateError
from fedseca.files import take_lock
from fedseca.reading import as_tensor
from fedseca.rounds import Played
from fedseca.server import Server

_LOCK = ".lock"


class Book:
    """The audit and the checkpoint of one training, each in a folder if it is wanted; open for this process alone."""

    def __init__(self, server: Server, audit_dir: str | Path | None, checkpoint_dir: str | Path | None) -> None:
        self.server = server
        self.audit_dir, self.checkpoint_dir = (None if d is None else Path(d) for d in (audit_dir, checkpoint_dir))
        for name, folder in (("audit_dir", self.audit_dir), ("checkpoint_dir", self.checkpoint_dir)):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise InputError(f"{name} must be a folder; found the file {folder}")
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
        round 1 must not leave lines in the audit that are written again.
        """
        self._settings = dict(settings)
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
            self._audit.cut_back(head, done + 1, done + 1)
        return done, model

    def write(self, number: int, played: Played, **said: Any) -> None:
        """A round: its lines in the audit, with what else is said of it; then the checkpoint after it."""
        if self._audit is not None:
            when = {"time": datetime.now(UTC).isoformat(timespec="seconds"), **said, "round": number}
            self._audit.append({**when, **record} for record in played.records())
        self._keep(number, played.model)

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
