#!/bin/sh
# Installs the optional system packages that tests use. Tests skip what is missing, so a failure here is not fatal.
set -u
here=$(dirname "$0")
sh "$here/java.sh" || exit 1
have() { command -v "$1" >/dev/null 2>&1; }
have chromium || sh "$here/apt.sh" chromium || echo "tocsin system: no Chromium; browser tests will be skipped"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || sh "$here/apt.sh" postgresql || echo "tocsin system: no PostgreSQL; its tests will be skipped"
have nats-server || sh "$here/apt.sh" nats-server || echo "tocsin system: no nats-server; comparisons leave it out"
have mosquitto || [ -x /usr/sbin/mosquitto ] || sh "$here/apt.sh" mosquitto || echo "tocsin system: no mosquitto; comparisons leave it out"
have mosquitto_sub || sh "$here/apt.sh" mosquitto-clients || echo "tocsin system: no mosquitto-clients; the tests with them will be skipped"
have strace || sh "$here/apt.sh" strace || echo "tocsin system: no strace; the test of power failures will be skipped"
