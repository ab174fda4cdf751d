"""Loads a trace directory, or says exactly which file is damaged or foreign."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opentrn.errors import ConfigurationError, CorruptFileError
from opentrn.trace.schema import FORMAT, TABLES, VERSION
from opentrn.trace.writer import METADATA_FILE


class Trace:
    """One trace directory.

    metadata: `trace.json`. Tables are read on demand: `batches` streams, `table` loads whole. Raises
    CorruptFileError for what is not a trace of this version, or for a damaged file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.metadata = _metadata(self.directory)

    @property
    def complete(self) -> bool:
        """Whether the run ended by itself and everything was written."""
        return bool(self.metadata.get("complete"))

    def files(self, table: str) -> list[Path]:
        """The finished files of a table, in order of writing."""
        return sorted(self.directory.glob(f"{table}-[0-9]*.parquet"))

    def rows(self, table: str) -> int:
        """Number of rows, read from the footers alone."""
        return sum(_open(path, table).metadata.num_rows for path in self.files(table))

    def batches(self, table: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches in order of writing; at most one file's row group is in memory."""
        for path in self.files(table):
            file = _open(path, table)
            try:
                yield from file.iter_batches(columns=columns)
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, error) from error

    def table(self, table: str, columns: list[str] | None = None) -> pa.Table:
        """A whole table; empty if the run wrote none."""
        schema = TABLES[table].arrow()
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        batches = [pa.Table.from_batches([batch]) for batch in self.batches(table, columns)]
        if not batches:
            return schema.empty_table()
        return pa.concat_tables(batches, promote_options="default").unify_dictionaries()


def _metadata(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigurationError(f"there is no trace directory '{directory}'", cure="check the path")
    path = directory / METADATA_FILE
    if not path.is_file():
        raise CorruptFileError(
            f"'{directory}' is not a trace: it has no {METADATA_FILE}", cure="name the directory itself"
        )
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise _damaged(path, error) from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise CorruptFileError(
            f"'{path}' does not describe an OpenTRN trace", cure="name a directory written by opentrn run"
        )
    if metadata.get("version") != VERSION:
        raise CorruptFileError(
            f"'{directory}' is a trace of version {metadata.get('version')}, and this reader knows {VERSION}",
            cure="record it again, or read it with the OpenTRN that wrote it",
        )
    return metadata


def _open(path: Path, table: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    found = file.schema_arrow
    for column in TABLES[table].arrow():
        index = found.get_field_index(column.name)
        if index < 0 or found.field(index).type != column.type:
            raise CorruptFileError(
                f"'{path}' is no table '{table}': its column '{column.name}' is missing or of another type",
                cure="remove the file; the others stand alone",
            )
    return file


def _damaged(path: Path, error: Exception) -> CorruptFileError:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CorruptFileError(
        f"'{path}' is damaged: {first_line}", cure="remove the file; the others stand alone"
    )
