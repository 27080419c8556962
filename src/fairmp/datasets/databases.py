"""Tables that are the result of a SQL query, through SQLAlchemy (the extra ``sql``)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairmp.errors import InputError

BATCH_ROWS = 50_000


def is_url(place: str | Path | None) -> bool:
    """Whether a place is the address of a database, and not a file."""
    return "://" in str(place)


def without_password(text: str) -> str:
    """Hide the password in the address of a database, for display."""
    return re.sub(r"(://[^:@/\s]*):\S*@", r"\1:***@", text)


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
    try:
        engine = _read_only_engine(url, argument)
        with engine.connect() as connection, path.open("w", newline="", encoding="utf8") as out:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("pragma query_only = on")
            result = connection.execute(sqlalchemy.text(query))
            if not result.returns_rows:
                raise InputError(f"{argument}_query", query, "give a query that selects rows")
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(result.keys())
            for batch in result.partitions():
                writer.writerows(batch)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, UnicodeError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        value = f"{without_password(url)} cannot be read: {without_password(reason).rstrip('.')}"
        raise InputError(argument, value, "check the address and the query") from None


def _read_only_engine(url: str, argument: str) -> Any:
    """Connect to a database so that a query cannot change it.

    PostgreSQL has an option for that, SQLite a pragma; elsewhere nothing is committed.
    """
    import sqlalchemy

    address = sqlalchemy.engine.make_url(url)
    if address.get_backend_name() == "sqlite" and not Path(address.database or "").is_file():
        value = f"{without_password(url)} does not exist"
        raise InputError(argument, value, "give the file of a database")
    return sqlalchemy.create_engine(
        address,
        poolclass=sqlalchemy.pool.NullPool,
        execution_options={"yield_per": BATCH_ROWS, "postgresql_readonly": True},
    )
