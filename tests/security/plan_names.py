"""The relations and functions of a parsed plan, read from Spark's JSON of the plan.

The check of channels walks over the nodes of a plan in another way, so this is a second opinion. The JSON stays in the
JVM, because sending it takes longer than making it: a small Java class picks the names out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.cluster.spark.session import Session

_SOURCE = r"""
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public final class PlanNames {
    private static final String TEXT = "\"((?:[^\"\\\\]|\\\\.)*)\"";
    private static final Pattern NAMES = Pattern.compile(
        "\"multipartIdentifier\":" + TEXT + "|\"nameParts\":" + TEXT + "|\"funcName\":" + TEXT
        + "|UnresolvedTableValuedFunction\",\"num-children\":\\d+,\"name\":" + TEXT
        + "|\"class\":\"[\\w.$]*\\.(ScriptTransformation|\\w*Command\\w*)\""
        + "|\"class\":\"[\\w.$]*\\.(UnresolvedFunction)\""
    );

    public String of(org.apache.spark.sql.catalyst.plans.logical.LogicalPlan plan) {
        java.util.TreeSet found = new java.util.TreeSet();
        Matcher names = NAMES.matcher(plan.toJSON());
        boolean isFunction = false;
        while (names.find()) {
            if (names.group(1) != null) found.add("relation\t" + names.group(1));
            else if (names.group(2) != null && isFunction) found.add("function\t" + names.group(2));
            else if (names.group(3) != null) found.add("function\t" + names.group(3));
            else if (names.group(4) != null) found.add("function\t" + names.group(4));
            else if (names.group(5) != null) found.add("other\t" + names.group(5));
            isFunction = names.group(6) != null;
        }
        StringBuilder lines = new StringBuilder();
        java.util.Iterator all = found.iterator();
        while (all.hasNext()) lines.append((String) all.next()).append('\n');
        return lines.toString();
    }
}
"""


@dataclass(frozen=True)
class PlanNames:
    relations: frozenset[str]
    """As Spark writes them: `[catalog, table]`, in lower case."""
    functions: frozenset[str]
    others: frozenset[str]
    """Scripts and commands."""


_readers: dict[Any, Any] = {}
"""One object of the Java class for each JVM: Py4J remembers methods by the name of their class."""


class NameReader:
    def __init__(self, session: Session) -> None:
        gateway: Any = session.sparkContext._gateway
        if gateway not in _readers:
            _readers[gateway] = _compiled(gateway)
        self._reader = _readers[gateway]

    def names_of(self, plan: Any) -> PlanNames:
        found: dict[str, set[str]] = {"relation": set(), "function": set(), "other": set()}
        for line in self._reader.of(plan).splitlines():
            kind, _, name = line.partition("\t")
            found[kind].add(name.lower())
        functions = frozenset(name.strip("[]") for name in found["function"])
        return PlanNames(frozenset(found["relation"]), functions, frozenset(found["other"]))


def _compiled(gateway: Any) -> Any:
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    kind = compiler.getClassLoader().loadClass("PlanNames")
    constructor = kind.getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
    return constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
