"""Writes a trace directory so that whatever is in it is readable, however the run ends.

Every file is written under a temporary name and renamed when whole. A file never depends on another one:
names are stored in the file that uses them. This module knows nothing of the device.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opentrn.errors import ConfigurationError
from opentrn.trace.schema import FORMAT, TABLES, VERSION

METADATA_FILE = "trace.json"
UNFINISHED = ".unfinished"


class TraceWriter:
    """Writes the files of one trace directory.

    directory: created if absent; ConfigurationError if it already holds a trace or cannot be written.
    metadata: what `trace.json` says besides the format; `complete` is False until `close()`.
    limit_bytes: writing stops, with a warning, once the files are this large together.

    A failed write (a full disk, say) prints one line, sets `stopped` and makes every later call a no-op: a
    trace is never worth the run it watches.
    """

    def __init__(self, directory: Path, metadata: dict[str, Any], limit_bytes: int = 8 << 30) -> None:
        self.directory = Path(directory)
        self.metadata = {"format": FORMAT, "version": VERSION, "complete": False, **metadata}
        self.limit_bytes = limit_bytes
        self.written_bytes = 0
        self.stopped: str | None = None
        self._next: dict[str, int] = dict.fromkeys(TABLES, 0)
        if (self.directory / METADATA_FILE).exists():
            raise ConfigurationError(
                f"'{self.directory}' already holds a trace", cure="name another directory, or remove this one"
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._replace_metadata()
        except OSError as error:
            raise ConfigurationError(
                f"cannot write a trace to '{self.directory}': {error.strerror or error}",
                cure="name a directory that can be written with --trace, or use --no-trace",
            ) from error

    def write(self, table: str, rows: pa.Table, *, last: bool = False) -> bool:
        """Writes one whole file of `table`; returns whether it was written.

        last: a small table of the run's end, worth a try although the trace has stopped.
        """
        if rows.num_rows == 0 or (self.stopped is not None and not last):
            return False
        final = self.directory / f"{table}-{self._next[table]:06d}.parquet"
        temporary = final.with_name(final.name + UNFINISHED)
        try:
            pq.write_table(rows, temporary, compression="zstd", compression_level=1)
            os.replace(temporary, final)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if self.stopped is None:
                self._stop(_cause(error))
            return False
        self._next[table] += 1
        self.written_bytes += final.stat().st_size
        if self.stopped is None and self.written_bytes > self.limit_bytes:
            self._stop(f"its limit of {self.limit_bytes} bytes is reached")
        return True

    def close(self, complete: bool, run: dict[str, Any] | None = None, **more: Any) -> None:
        """Rewrites `trace.json` with how the run ended; `more` is added to it.

        run: the description of the whole run, left out where there is no room for it.
        """
        self.metadata.update(more, complete=complete and self.stopped is None, stopped=self.stopped)
        if run is not None:
            self.metadata["run"] = run
        try:
            self._replace_metadata()
        except OSError as error:
            if self.stopped is None:
                self._stop(_cause(error))
            self.metadata.pop("run", None)
            self.metadata.update(complete=False, stopped=self.stopped)
            with contextlib.suppress(OSError):
                self._replace_metadata()
            (self.directory / (METADATA_FILE + UNFINISHED)).unlink(missing_ok=True)

    def _replace_metadata(self) -> None:
        final = self.directory / METADATA_FILE
        temporary = final.with_name(final.name + UNFINISHED)
        temporary.write_text(json.dumps(self.metadata, indent=1, default=str) + "\n", encoding="utf-8")
        os.replace(temporary, final)

    def _stop(self, cause: str) -> None:
        self.stopped = cause
        print(
            f"opentrn: tracing to '{self.directory}' stopped: {cause}; "
            "what is written stays readable and the run goes on",
            file=sys.stderr,
        )


def _cause(error: OSError) -> str:
    """What the system says; Arrow wraps it in a sentence of its own."""
    wrapped = re.search(r"\[errno \d+\] (.*)", str(error))
    return wrapped.group(1) if wrapped else error.strerror or str(error)
