"""Which names of a query's FROM clauses are datasets, and where they stand.

A name is a dataset unless a WITH that is visible there declares it. `channel_query` drives this on a parsed query.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tocsin.cluster.sql.query_scan import QueryScan


@dataclass(frozen=True, slots=True)
class TableReference:
    dataset: str
    """As written, without `NEW`."""
    is_new: bool
    start: int
    end: int
    """`NEW X` as a whole, without an alias."""
    alias: str | None

    @property
    def name(self) -> str:
        """What qualifies its columns."""
        return self.alias or self.dataset

    @property
    def alias_to_add(self) -> str:
        """A view has another name than its dataset: without an alias of the author's it gets the dataset's name."""
        return "" if self.alias else f" AS `{self.dataset}`"


def find_tables(found: QueryScan, ast: exp.Query) -> tuple[TableReference, ...]:
    references = []
    for table in ast.find_all(exp.Table):
        name = table.this
        if not isinstance(name, exp.Identifier) or table.find_ancestor(exp.Hint, exp.Into) is not None:
            continue  # a table function, or a hint that names an alias
        start = int(name.meta["start"])
        if table.args.get("db") is not None:
            qualifier = table.args["db"]
            found.refuse(
                int(qualifier.meta.get("start", start)),
                f"a channel reads declared datasets by their plain name, but found '{table.sql(dialect='spark')}'",
                "qualified-name", "a dataset",
            )  # fmt: skip
            continue
        new = found.news.get(start)
        dataset = name.this if new is None else new.dataset
        if is_cte(table, dataset):
            if new is None:
                continue
            found.refuse(start, f"NEW reads a dataset, but '{dataset}' is declared by WITH", "new-of-cte", "a dataset")
        end = int(name.meta["end"]) + 1 if new is None else new.end
        references.append(TableReference(dataset, new is not None, start, end, table.alias or None))
    return tuple(sorted(references, key=lambda table: table.start))


def is_cte(table: exp.Expr, name: str) -> bool:
    """True if a WITH visible at `table` declares `name`: its own query's or an outer one's."""
    inside: exp.Expr = table
    parent = table.parent
    while parent is not None:
        with_ = parent if isinstance(parent, exp.With) else parent.args.get("with_")
        if isinstance(with_, exp.With) and with_ is not inside:
            declared = [cte for cte in with_.expressions if isinstance(cte, exp.CTE)]
            if isinstance(parent, exp.With):
                # Inside a WITH a definition sees those before it, and itself if it is recursive.
                own = next((index for index, cte in enumerate(declared) if cte is inside), len(declared))
                declared = declared[: own + 1 if with_.args.get("recursive") else own]
            if any(cte.alias.upper() == name.upper() for cte in declared):
                return True
        inside, parent = parent, parent.parent
    return False
