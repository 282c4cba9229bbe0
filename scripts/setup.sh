#!/bin/sh
# Creates .venv with the pinned dependencies, and installs a Java runtime if there is none.
# The Makefile runs it and sets PYTHON and VENV; it is safe to run again. `sh scripts/setup.sh` installs what Tocsin needs
# to run, `sh scripts/setup.sh dev` also what its tests and checks need.
set -eu
PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"
here=$(dirname "$0")

say() { printf '%s\n' "tocsin setup: $*"; }
stop() { printf '%s\n' "tocsin setup: $*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 ||
  stop "there is no '$PYTHON'; install Python 3.11 or newer, or call make with PYTHON=/path/to/python3."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  stop "$("$PYTHON" --version) is too old; install Python 3.11 or newer, or call make with PYTHON=/path/to/python3."

# Debian has ensurepip in a separate package, named after the interpreter.
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  sh "$here/apt.sh" "python$version-venv" || sh "$here/apt.sh" python3-venv ||
    stop "Python's venv module is missing; install it with: apt-get install python3-venv"
fi

sh "$here/java.sh"

# If pip does not work in the environment, it is incomplete: create it again.
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || { rm -rf "$VENV"; say "creating $VENV"; "$PYTHON" -m venv "$VENV"; }
case "${1:-}" in
  dev) what=".[dev]"; lock=dev; say "installing the pinned dependencies, tests and checks included (about a minute the first time)" ;;
  *) what="."; lock=run; say "installing the pinned dependencies (about a minute the first time)" ;;
esac
# --no-compile: Python compiles a module when it is first imported, and many never are.
install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
# Only files whose hash is in the lock are installed, also those that build other packages.
install_locked() {
  install --require-hashes --no-deps --requirement "$locks/build.txt" &&
    install --require-hashes --no-deps --no-build-isolation --requirement "$locks/$lock.txt" &&
    install --no-deps --no-build-isolation --editable .
}
locks=$("$VENV/bin/python" "$here/lock.py" --platform)
if [ -n "${UNLOCKED:-}" ]; then
  say "UNLOCKED is set: the hashes of the packages are not checked"
  install --constraint constraints.txt --editable "$what"
elif [ -d "$locks" ]; then
  install_locked || stop "a package is missing or differs from its hash in $locks; 'make setup UNLOCKED=1' does not check hashes."
else
  say "there is no $locks: the hashes of the packages are not checked on this platform (scripts/lock.py writes them)"
  install --constraint constraints.txt --editable "$what"
fi
say "ready"
