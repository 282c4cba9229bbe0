#!/bin/sh
# Install Debian packages if this machine has apt and this user has the right to; otherwise exit 1 without a message.
set -eu
command -v apt-get >/dev/null 2>&1 || exit 1
if [ "$(id -u)" = 0 ]; then as_root=""; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else exit 1; fi
log=$(mktemp); trap 'rm -f "$log"' EXIT
run() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >>"$log" 2>&1; }
echo "tocsin setup: installing $*"
run install --no-install-recommends "$@" && exit 0
run update && run install --no-install-recommends "$@" && exit 0
tail -n 5 "$log" >&2
exit 1
