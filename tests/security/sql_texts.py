"""Generates channel queries, most of them odd and many hostile.

A text is a query of random clauses. Its gaps hold comments, odd blanks and escapes. Fragments that try to hide code
from one of two tokenizers are put between its clauses. Then characters are changed at random. The n-th text of a seed
is always the same. `sql_fuzzing` puts the texts through the checks of a channel.
"""

from __future__ import annotations

from random import Random

from tocsin.cluster.sql.allowed_functions import ALLOWED_FUNCTIONS, REFUSED_FUNCTIONS

BLANKS = (" ",) * 12 + (
    "\n",
    "\t",
    "  ",
    "\r\n",
    "\f",
    "\u00a0",
    "\u2003",
    "\u2028",
    "\ufeff",
    "\x0b",
    "\x00",
    "\u200b",
)
COMMENTS = (
    "-- plain\n", "-- \\\n", "-- ' \n", '-- " \n', "-- ` \n", "-- \\\\\n", "--\n", "-- \r", "--\\\r\n", "/* a */",
    "/* ' */", "/* -- */", "/* /* b */ c */", "/**/", "/*+ broadcast(r) */", "/*+ x */", "/* \\*/", "/*/* */*/",
    "-- /* \n", "/* \n*/", "/* $$ */", "--+ x\n", "/*! 1 */", "-- \\\n", "-- \\\n", "-- '\\\n", "-- \\ \n", "# x\n",
)  # fmt: skip
STRINGS = (
    "'fire'", "''", "'it''s'", r"'a\'b'", r"'\\'", r"'\''", '"x"', '"x""y"', r'"\""', r"r'\'", r"R'a\d'", 'r"\\"',
    "'-- no'", "'/* '", "' */'", '"\'"', "'\"'", "'`'", "'$$'", "'${env:PATH}'", "'${spark:spark.app.id}'", "X'1F'",
    r"'\u0027'", r"'\047'", r"'\x27'", "'a' 'b'", "'a'\n'b'", "$$ x $$", "$t$ ' $t$", "N'x'", "b'x'",
    r"e'\''", "'\\\n'",
    "'\u2019'", "\u2018x\u2019", r"u&'\0027'", "DATE'2026-01-01'", "q'[x]'",
)  # fmt: skip
NAMES = (
    "r.id",
    "r.kind",
    "severity",
    "`kind`",
    "r.`lat`",
    "lon",
    "r.at",
    "r.tags",
    "`a``b`",
    "größe",
    "`-- x`",
    "1a",
    "_x",
)
RELATIONS = (
    ("NEW Reports r",) * 60
    + ("Places p", "Reports", "`Reports` r", "NEW `Reports` r", "(SELECT * FROM NEW Reports) r", "c", "NEW Places p")
    + ("canary_r", "parquet.`/canary`", "text.`/etc/hostname`", "default.canary", "`parquet`.`/canary`", "`/canary`")
    + ("VALUES (1, 'a') AS v(x, y)", "range(3)", "read_files('/canary')", "identifier('canary')", "file:///canary")
    + ("delta.`s3://canary`", "_tocsin_subscriptions", "Reports VERSION AS OF 1", "STREAM Reports", "TABLE(canary_r)")
    + ("LATERAL (SELECT 1 AS one) l", "explode(array(1, 2)) e", "Reports TABLESAMPLE (1 ROWS)")
)
HOSTILE = (
    "canary_f(1)", "reflect('canary', 'x')", "java_method('canary', 'x')", "`reflect`('canary')",
    "builtin.reflect('a')",
    "try_reflect('canary', 'x')", "rand()", "current_user", "current_user()", "input_file_name()", "uuid()",
    "version()",
    "(SELECT max(value) FROM text.`/canary`)", "from_xml('x', 'a INT', map('rowValidationXSDPath', '/canary'))",
    "identifier('reflect')('canary')", "session_user()", "raise_error('canary')",
)  # fmt: skip
STATEMENTS = (
    "UNION ALL SELECT TRANSFORM(1) USING 'canary' AS (x STRING)", "UNION ALL SELECT * FROM text.`/canary`",
    "UNION ALL SELECT canary_f(1)", "; DROP TABLE canary", "UNION ALL FROM (MAP 1 USING 'canary' AS x) SELECT x",
    "UNION ALL TABLE canary_r", "INTO canary", "UNION ALL SELECT * FROM VALUES (reflect('canary', 'x'))",
    "LIMIT canary_f(3)", "WINDOW w AS (PARTITION BY reflect('canary', 'x'))", "LATERAL VIEW canary_g(1) v AS y",
)  # fmt: skip
HIDINGS: tuple[tuple[str, str], ...] = (
    ("-- \\\n '\n", " -- '"), ('-- \\\n "\n', ' -- "'), ("-- \\\n `\n", " -- `"), ("-- \\\n /*\n", " -- */"),
    ("$$ ' $$ ", " $$ ' $$"), (r"r'\' ", r" r'\'"), (r"'\\' ", " ''"), ("/* /* */ ", " */"), ("/*+ ' */ ", " /*+ ' */"),
    ("`a`` ", " `"), ('"a"" ', ' "'), ("'a'' ", " '"), ("-- \r ", ""), ("/*+ */ ", ""), ("'\\", "'"), ("{", "}"),
    ("/* \\*/ ", " /* */"), ("--\u2028 ", ""), ("--\u0085", ""), ("--\x0b", ""), ("/*! ", " */"),
    ("a://b--", ""), ("", ""),
    ("q'[' ", " ]'"), ("E'\\' ", " '"), ("u&'\\' ", " '"), ("N'", "'"), ("'\ufeff", "'"), ("\"'\" ", " '\"'"),
)  # fmt: skip
CHARACTERS = "'\"`\\\n\r-/*$;:()[]{}@#?+.,%&|<>=~^!rRxXnNbBeE09_ \u00a0\u2028\ufeff\x00\u2019"
NUMBERS = (":kind", ":least", "1", "2.5", "1L", "1e3", "NULL", ".5", "3Y", "0x1F", "1_000", "5.e", "?", ":KIND", "1a")
CALLS = tuple(sorted(name for name in ALLOWED_FUNCTIONS if name.isidentifier()))
USUAL_CALLS = (
    ("upper", 1), ("coalesce", 2), ("concat", 3), ("if", 3), ("length", 1), ("array", 2), ("struct", 2), ("nullif", 2),
    ("greatest", 2), ("to_json", 1), ("md5", 1), ("regexp_replace", 3), ("date_trunc", 2), ("explode", 1),
    ("ifnull", 2),
    ("map", 2), ("sha2", 2), ("substring", 2), ("trim", 1), ("split", 2), ("`upper`", 1), ("UPPER", 1), ("isnull", 1),
    ("max", 1), ("count", 1), ("collect_list", 1), ("from_json", 2), ("element_at", 2), ("distance_m", 4),
)  # fmt: skip
REFUSED = tuple(sorted(REFUSED_FUNCTIONS))


def text_of(seed: int, number: int) -> str:
    """The n-th query of a seed."""
    rng = Random(f"{seed}-{number}")
    clauses = _query(rng, 0)
    if rng.random() < 0.2:
        opening, closing = rng.choice(HIDINGS)
        clauses.insert(rng.randrange(1, len(clauses) + 1), f"{opening}{rng.choice(STATEMENTS)}{closing}")
    text = _joined(rng, clauses)
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 2))):
        text = _mutated(rng, text)
    return text


def _query(rng: Random, depth: int) -> list[str]:
    parts = []
    if rng.random() < 0.15 and depth < 2:
        parts += ["WITH", "c", "AS", "(", *_query(rng, depth + 1), ")"]
    items = ", ".join(f"{_expression(rng, 0)} AS x{index}" for index in range(rng.randint(1, 2)))
    parts += ["SELECT", items, "FROM", rng.choice(RELATIONS)]
    if rng.random() < 0.3:
        parts += [rng.choice(("JOIN", "LEFT JOIN", "CROSS JOIN", ",")), rng.choice(RELATIONS)]
        if parts[-2] in ("JOIN", "LEFT JOIN"):
            parts += ["ON", _condition(rng)]
    if rng.random() < 0.7:
        parts += ["WHERE", _condition(rng)]
    if rng.random() < 0.1:
        parts += ["GROUP BY", _expression(rng, 1)]
    if rng.random() < 0.1:
        parts += ["ORDER BY", rng.choice(NAMES), "LIMIT", "3"]
    if rng.random() < 0.1 and depth < 2:
        parts += [rng.choice(("UNION ALL", "EXCEPT", "INTERSECT")), *_query(rng, depth + 1)]
    if rng.random() < 0.05:
        parts = ["FROM", rng.choice(RELATIONS)]
    for _ in range(rng.randint(1, 3) if parts[0] == "FROM" or rng.random() < 0.03 else 0):
        parts += ["|>", *_pipe_operator(rng, depth)]
    return parts


def _pipe_operator(rng: Random, depth: int) -> list[str]:
    name = rng.choice(NAMES)
    return rng.choice(
        (
            ["WHERE", _condition(rng)],
            ["SELECT", _expression(rng, 1), "AS y"],
            ["EXTEND", _expression(rng, 1), "AS z"],
            ["AGGREGATE", "count(*) AS n", "GROUP BY", name],
            ["JOIN", rng.choice(RELATIONS), "ON", _condition(rng)],
            ["UNION ALL", *(_query(rng, depth + 1) if depth < 2 else ["SELECT", "1"])],
            ["SET", "kind =", _expression(rng, 1)],
            ["DROP", "kind"],
            ["AS", "t"],
            ["LIMIT", "3"],
            ["PIVOT", "(max(severity) FOR kind IN ('a'))"],
        )
    )


def _condition(rng: Random) -> str:
    left, right = _expression(rng, 0), _expression(rng, 1)
    joined = f" {rng.choice(('AND', 'OR'))} {_condition(rng)}" if rng.random() < 0.2 else ""
    if rng.random() < 0.1:
        return f"near(r.lat, r.lon, p.lat, p.lon, :radius_m){joined}"
    return f"{left} {rng.choice(('=', '<>', '<', 'LIKE', '<=>', 'IN (1) OR 1 ='))} {right}{joined}"


def _expression(rng: Random, depth: int) -> str:
    choice = rng.random()
    if choice < 0.3 or depth > 2:
        return rng.choice(NAMES[:8]) if rng.random() < 0.97 else rng.choice(NAMES)
    if choice < 0.5:
        return rng.choice(STRINGS) if rng.random() < 0.3 else rng.choice(STRINGS[:8])
    if choice < 0.6:
        return rng.choice(NUMBERS) if rng.random() < 0.2 else rng.choice(NUMBERS[:7])
    if choice < 0.61:
        return rng.choice(HOSTILE)
    if choice < 0.63:
        opening, closing = rng.choice(HIDINGS)
        return f"{opening}{rng.choice(HOSTILE)}{closing}"
    if choice < 0.75:
        return f"CASE WHEN {_expression(rng, depth + 1)} IS NULL THEN {_expression(rng, depth + 1)} END"
    if choice < 0.78:
        return f"max({_expression(rng, depth + 1)}) OVER (PARTITION BY {_expression(rng, depth + 1)})"
    if choice < 0.96:
        name, arity = rng.choice(USUAL_CALLS)
        return f"{name}({', '.join(_expression(rng, depth + 1) for _ in range(arity))})"
    arguments = ", ".join(_expression(rng, depth + 1) for _ in range(rng.randint(1, 2)))
    return f"{rng.choice(CALLS) if rng.random() < 0.9 else rng.choice(REFUSED)}({arguments})"


def _joined(rng: Random, clauses: list[str]) -> str:
    def gap() -> str:
        between = rng.choice(BLANKS[:14]) if rng.random() < 0.985 else rng.choice(BLANKS)
        return between + (rng.choice(COMMENTS) if rng.random() < 0.1 else "")

    return "".join(clause + gap() for clause in clauses)


def _mutated(rng: Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    change = rng.random()
    if change < 0.5:
        return text[:place] + rng.choice(CHARACTERS) + text[place:]
    if change < 0.8:
        return text[:place] + text[place + 1 :]
    other = rng.randrange(len(text) + 1)
    return text[:place] + text[other : other + rng.randint(1, 8)] + text[place:]
