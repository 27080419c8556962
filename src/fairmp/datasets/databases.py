"""Tables that are the result of a SQL query, through SQLAlchemy (the extra ``sql``)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fairmp.errors import InputError
from fairmp.outputs import without_password

BATCH_ROWS = 50_000


def is_url(place: str | Path | None) -> bool:
    """Tell the address of a database from the name of a file."""
    return "://" in str(place)


@contextmanager
def as_file(place: str | Path | None, query: str | None, argument: str) -> Iterator[Path | None]:
    """Give the file of a table; the result of a query becomes a temporary CSV file."""
    if not is_url(place):
        if query is not None:
            hint = "give the address of a database, as in sqlite:///people.db"
            raise InputError(argument, f"{place} is no database, but there is a query", hint)
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
    shown = without_password(url)
    try:
        address = sqlalchemy.engine.make_url(url)
        file = address.database
        if address.get_backend_name() == "sqlite" and not (file and Path(file).is_file()):
            raise InputError(argument, f"{shown} does not exist", "give the file of a database")
        # A query must not change the database: SQLite needs a pragma, PostgreSQL an option, and
        # elsewhere nothing is committed.
        options = {"yield_per": BATCH_ROWS, "postgresql_readonly": True}
        engine = sqlalchemy.create_engine(
            address, poolclass=sqlalchemy.pool.NullPool, execution_options=options
        )
        with engine.connect() as connection, path.open("w", newline="", encoding="utf8") as out:
            if address.get_backend_name() == "sqlite":
                connection.exec_driver_sql("pragma query_only = on")
            found = connection.execute(sqlalchemy.text(query))
            if not found.returns_rows:
                raise InputError(f"{argument}-query", query, "give a query that selects rows")
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(found.keys())
            for batch in found.partitions():
                writer.writerows(batch)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, UnicodeError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        value = f"{shown} cannot be read: {without_password(reason).rstrip('.')}"
        raise InputError(argument, value, "check the address and the query") from None
