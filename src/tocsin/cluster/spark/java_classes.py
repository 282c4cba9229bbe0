"""Compiles the few Java classes of Tocsin inside Spark's JVM, with the compiler that Spark has for generated code.

The classes are source files in the folder `java`: installing Tocsin needs no Java compiler, and each class is compiled
against the Spark that runs. The JVM's class loader gets them as a jar, so that tasks find them by name.

Janino compiles Java without generics and without lambdas.
"""

from __future__ import annotations

import tempfile
import threading
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

_compiling = threading.Lock()
_classes: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""The compiled classes by name, for each gateway to a JVM."""
_objects: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the folder `java`. The first call in a JVM compiles it, which takes a moment."""
    gateway: Any = session.sparkContext._gateway
    with _compiling:
        compiled = _classes.setdefault(gateway, {})
        if name not in compiled:
            compiled[name] = _compile(session, name)
        return compiled[name]


def java_object(session: SparkSession, name: str) -> Any:
    """The only object of a class whose constructor takes no arguments."""
    kind = java_class(session, name)
    objects = _objects.setdefault(session.sparkContext._gateway, {})
    if name not in objects:
        objects[name] = new_object(session, kind)
    return objects[name]


def new_object(session: SparkSession, kind: Any, *arguments: tuple[Any, Any]) -> Any:
    """A new object of a class. Each argument is the class of the parameter and the value."""
    gateway: Any = session.sparkContext._gateway
    parameters = gateway.new_array(gateway.jvm.java.lang.Class, len(arguments))
    values = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for index, (parameter, value) in enumerate(arguments):
        parameters[index], values[index] = parameter, value
    return kind.getDeclaredConstructor(parameters).newInstance(values)


def _compile(session: SparkSession, name: str) -> Any:
    jvm: Any = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(files(__package__).joinpath("java", f"{name}.java").read_text("utf-8"))
    folder = jvm.org.apache.spark.util.Utils.createTempDir(tempfile.gettempdir(), "tocsin-java")
    jar = Path(folder.getPath(), f"{name}.jar")  # the JVM deletes the folder when it ends
    with zipfile.ZipFile(jar, "w") as target:
        for part, content in dict(compiler.getBytecodes()).items():
            target.writestr(f"{part}.class", bytes(content))
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    context: Any = session.sparkContext
    if not context.master.startswith("local"):
        context._jsc.addJar(str(jar))  # executors in other processes fetch it from the driver
    return loader.loadClass(name)
