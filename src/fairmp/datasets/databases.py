"""Tables that are the result of a SQL query, through SQLAlchemy (the extra ``sql``)."""

from __future__ import annotations

import csv
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from fairmp.errors import InputError
from fairmp.secrets import redact, without_password

BATCH_ROWS = 50_000

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_QUOTED_SQL = re.compile(
    r"'[^']*'|\"[^\"]*\"|`[^`]*`|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.DOTALL
)
# What a query may do: select, read columns, call functions, recurse.
_ALLOWED = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
)


def is_url(place: str | Path | None) -> bool:
    """Whether a place is the address of a database, and not a file."""
    return "://" in str(place)


def with_environment(url: str, argument: str) -> str:
    """Fill in variables of the environment, as in ``postgresql://me:${PGPASSWORD}@host/db``."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            value = f"the variable {match[1]} is not set"
            raise InputError(argument, value, f"export {match[1]}")
        return quote(os.environ[match[1]], safe="")

    return _VARIABLE.sub(value_of, url)


@contextmanager
def as_file(place: str | Path | None, query: str | None, argument: str) -> Iterator[Path | None]:
    """Yield the file of a table; the result of a query is written to a temporary CSV file."""
    if not is_url(place):
        if query is not None:
            hint = "give the address of a database, as in sqlite:///people.db"
            raise InputError(argument, f"{place} is not a database, but there is a query", hint)
        yield None if place is None else Path(place)
        return
    if query is None:
        value = f"{without_password(str(place))} without a query"
        raise InputError(argument, value, f"add {{{argument}_query='select …'}}")
    with TemporaryDirectory(prefix="fairmp-sql-") as folder:
        stem = Path(re.sub(r"\?.*", "", str(place))).stem or "query"
        path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', stem)}.csv"
        export(str(place), query, path, argument)
        yield path


def export(url: str, query: str, path: Path, argument: str = "url") -> None:
    """Write the result of a query to a CSV file, in batches of rows."""
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise InputError("sqlalchemy", "not installed", "pip install 'fairmp[sql]'") from None
    _check_one_statement(query, argument)
    address = with_environment(url, argument)
    try:
        engine = _read_only_engine(address, argument)
        with engine.connect() as connection, path.open("w", newline="", encoding="utf8") as out:
            if engine.dialect.name == "sqlite":
                connection.connection.driver_connection.set_authorizer(_authorize)
            result = connection.execute(sqlalchemy.text(query))
            if not result.returns_rows:
                raise InputError(f"{argument}_query", query, "give a query that selects rows")
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(result.keys())
            for batch in result.partitions():
                writer.writerows(batch)
    except InputError:
        raise
    except Exception as error:  # drivers raise anything, with the address in the message
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        reason = redact(lines[0] if lines else type(error).__name__, address).rstrip(".")
        value = f"{without_password(url)} cannot be read: {reason}"
        raise InputError(argument, value, "check the address and the query") from None


def _check_one_statement(query: str, argument: str) -> None:
    """Refuse a second statement, which could end the read-only transaction of the first."""
    if ";" in _QUOTED_SQL.sub("", query).strip().rstrip(";"):
        raise InputError(f"{argument}_query", query, "give a single statement, without ';'")


def _read_only_engine(url: str, argument: str) -> Any:
    """Connect to a database so that a query cannot change it, nor write other files.

    SQLite opens the file read-only and refuses everything but selecting, PostgreSQL has read-only
    transactions; elsewhere nothing is committed.
    """
    import sqlalchemy

    address = sqlalchemy.engine.make_url(url)
    options: dict[str, Any] = {}
    if address.get_backend_name() == "sqlite":
        file = Path(address.database or "")
        if not file.is_file():
            value = f"{without_password(url)} does not exist"
            raise InputError(argument, value, "give the file of a database")
        options["creator"] = lambda: _connect_read_only(file)
    return sqlalchemy.create_engine(
        address,
        poolclass=sqlalchemy.pool.NullPool,
        execution_options={"yield_per": BATCH_ROWS, "postgresql_readonly": True},
        **options,
    )


def _connect_read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)


def _authorize(action: int, *_: str | None) -> int:
    """Let SQLite run queries only: a pragma, ``attach`` or ``vacuum into`` may write files."""
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
