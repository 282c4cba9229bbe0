#!/bin/sh
# Spark 4.3 needs Java 17 or newer: find one, or install Debian's package if this user has the right to.
set -eu
here=$(dirname "$0")

java_major() {
  java_command="java"
  [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java_command="$JAVA_HOME/bin/java"
  "$java_command" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}
enough() { major=$(java_major 2>/dev/null || true); [ -n "$major" ] && [ "$major" -ge 17 ]; }

enough && exit 0
sh "$here/apt.sh" default-jre-headless && enough && exit 0
sh "$here/apt.sh" openjdk-17-jre-headless && enough && exit 0
echo "tocsin setup: Spark needs a Java runtime of version 17 or newer; install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and run make again." >&2
exit 1
