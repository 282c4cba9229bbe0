"""Runs an RDD of one partition in the driver's JVM, in the thread that calls, instead of in a Spark job.

For a few records, a job costs several times what its task computes: Spark writes the plan as bytes, schedules a stage
and a task, reads the plan again, and reports all of it. `DriverTask` gives the calling thread what Spark gives to a
task: a context with settings and memory of its own. The objects of the plan are used as they are, so an RDD must run
once at a time.

Only for a local master, where the executor is in the driver's JVM anyway, and only for small executions
(`cluster.spark.reused_plan`). An error arrives as a Java error; the caller repeats the execution as a job.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.util import _load_from_socket

from tocsin.cluster.spark.errors import SPARK_ERRORS

Java = Any
_FIRST_ID = 1 << 48
"""Spark numbers its own tasks from zero on."""
_NO_STAGE = -1

_ids = itertools.count(_FIRST_ID)
_lock = threading.Lock()


class TaskAbandoned(Exception):
    """The task was cancelled. Its thread in the JVM may go on for a while: the plan must not be used again."""


@dataclass(slots=True)
class _Running:
    context: Java
    gateway: Any
    connection: Any
    """The connection on which the Python thread waits for the end of the task."""
    objects: list[Java]
    """The objects whose methods run the task."""
    is_abandoned: bool = False

    def check(self) -> None:
        if self.is_abandoned:
            raise TaskAbandoned


_running: dict[int, _Running] = {}
"""By the identity of the Python thread."""


def abandon_task(thread: int) -> None:
    """Cancel the task that this thread waits for, if any, and let the thread fail at once.

    As in a cancelled job, the task itself ends only when it reads its next records.
    """
    with _lock:
        running = _running.get(thread)
        if running is None or running.is_abandoned:
            return
        running.is_abandoned = True
        # Py4J repeats a call whose connection was closed. It fails if the JVM does not know the object any more.
        for used in running.objects:
            running.gateway._gateway_client.garbage_collect_object(used._target_id, enqueue=False)
        with suppress(OSError):  # the connection is closed already
            running.connection.socket.shutdown(socket.SHUT_RDWR)
    running.context.markInterrupted("cancelled")


def abandon_tasks() -> None:
    """Cancel the tasks of all threads."""
    for thread in list(_running):
        abandon_task(thread)


@dataclass(frozen=True, slots=True)
class DriverTask:
    """Thread-safe. Finding a class of the JVM takes a call for each part of its name, so they are found once."""

    _new_context: Java
    _new_memory: Java
    _metrics: Java
    """Of all tasks together. Nothing reads them, but operators write them."""
    _contexts: Java
    _memory: Java
    """Spark's memory, in which every task has a share."""
    _blocks: Java
    _serve: Java
    _no_error: Java
    _jvm: Java
    _threads: Java
    _thread_facts: Java
    _cpu_time: Java
    """A method of `_thread_facts`."""
    _gateway: Any
    """Py4J's side in Python, which knows the connection of each thread."""

    @classmethod
    def of(cls, context: SparkContext) -> DriverTask | None:
        """None if the executors are elsewhere, or if Python's threads do not have threads of their own in the JVM."""
        if not str(context.master).startswith("local") or not isinstance(context._gateway, ClientServer):
            return None
        with _lock:
            found = _found.get(context)
        if found is None:
            found = cls._of(context)
            with _lock:
                _found[context] = found
        return found

    @classmethod
    def _of(cls, context: SparkContext) -> DriverTask:
        jvm: Any = context._jvm
        spark = jvm.org.apache.spark
        seconds = jvm.java.lang.Long.TYPE
        return cls(
            spark.TaskContextImpl,
            spark.memory.TaskMemoryManager,
            spark.executor.TaskMetrics(),
            getattr(getattr(spark, "TaskContext$"), "MODULE$"),
            _of_environment(context, "memoryManager", "org.apache.spark.memory.MemoryManager"),
            _of_environment(context, "blockManager", "org.apache.spark.storage.BlockManager"),
            jvm.PythonRDD.serveIterator,
            jvm.scala.Option.empty(),
            jvm,
            jvm.java.lang.Thread,
            jvm.java.lang.management.ManagementFactory.getThreadMXBean(),
            _method(jvm, "java.lang.management.ThreadMXBean", "getThreadCpuTime", seconds, seconds),
            context._gateway,
        )

    def computing_clock(self) -> Callable[[], float]:
        """A clock of the CPU seconds that the calling thread spends in the JVM. Any thread may read it."""
        thread = self._threads.currentThread().getId()
        return lambda: float(_call(self._jvm, self._cpu_time, self._thread_facts, thread)) / 1e9

    def collect(self, elements: Java, settings: Java) -> list[bytes]:
        """The elements of an RDD of bytes with one partition, in order. `settings` are those of the task.

        Raises TaskAbandoned if the task was cancelled meanwhile.
        """
        partition = elements.partitions()[0]
        with self._task(settings, elements) as running:
            iterator = elements.iterator(partition, running.context)
            running.objects.append(iterator)
            found = iterator.toList()
            running.check()
        # Through a socket: Py4J would write the bytes as text.
        with _load_from_socket(self._serve(found.iterator(), "serve results"), NoOpSerializer()) as parts:
            return list(parts)

    @contextmanager
    def _task(self, settings: Java, elements: Java) -> Iterator[_Running]:
        """A block in which this thread is a task in the JVM."""
        number, thread = next(_ids), threading.get_ident()
        memory = self._new_memory(self._memory, number)
        task = self._new_context(_NO_STAGE, 0, 0, number, 0, 1, memory, settings, None, self._metrics, None, None)
        connection = self._gateway._gateway_client.get_thread_connection()
        running = _Running(task, self._gateway, connection, [elements])
        self._blocks.registerTask(number)
        self._contexts.setTaskContext(task)
        with _lock:
            _running[thread] = running
        try:
            yield running
        except Exception as error:
            if running.is_abandoned and not isinstance(error, TaskAbandoned):
                raise TaskAbandoned from error
            raise
        finally:
            with _lock:
                del _running[thread]
            with suppress(*SPARK_ERRORS, Py4JError, OSError):  # the JVM may have died
                try:
                    task.markTaskCompleted(self._no_error)
                finally:
                    memory.cleanUpAllAllocatedMemory()
                    self._blocks.releaseAllLocksForTask(number)
                    self._contexts.unset()


_found: WeakKeyDictionary[SparkContext, DriverTask] = WeakKeyDictionary()


def _of_environment(context: SparkContext, name: str, kind: str) -> Java:
    """A part of Spark's environment, by the name and the class of its getter."""
    jvm: Any = context._jvm
    environment: Any = context._jsc.sc().env()
    return _call(jvm, _method(jvm, "org.apache.spark.SparkEnv", name, jvm.java.lang.Class.forName(kind)), environment)


def _method(jvm: Java, owner: str, name: str, *types: Java) -> Java:
    """A handle of a method, by the class of its result and those of its arguments.

    Py4J looks at all methods of an object before it calls one. That fails if one of them names a class that is not in
    Spark's distribution, or if the object's own class is not public. A method handle looks at one method.
    """
    invoke = jvm.java.lang.invoke
    kind = invoke.MethodType.methodType(*types)
    return invoke.MethodHandles.publicLookup().findVirtual(jvm.java.lang.Class.forName(owner), name, kind)


def _call(jvm: Java, method: Java, *arguments: Java) -> Any:
    given = jvm.java.util.ArrayList()
    for argument in arguments:
        given.add(argument)
    return method.invokeWithArguments(given)
