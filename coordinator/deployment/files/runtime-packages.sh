#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints the Debian packages of the shared libraries that programs need, one a line.
#
#   runtime-packages.sh FILE...
#
# Exit codes: 0 printed, 2 usage, 4 a file is none, or needs a library that is not there.
set -euo pipefail
[ $# -gt 0 ] || { echo "runtime-packages: no file named" >&2; exit 2; }
libraries=()
for file in "$@"; do
  [ -f "$file" ] || { echo "runtime-packages: no such file: '$file'" >&2; exit 4; }
  # Scripts beside the programs need none of their own.
  [ "$(head -c 4 "$file" | tr -d '\0')" = $'\x7fELF' ] || continue
  needed=$(ldd "$file")
  if missing=$(grep 'not found' <<< "$needed"); then
    echo "runtime-packages: '$file' lacks ${missing//$'\t'/}" >&2
    exit 4
  fi
  while read -r library; do libraries+=("$library"); done < <(
    awk '{ for (i = 1; i <= NF; ++i) if ($i ~ /^\//) print $i }' <<< "$needed"
  )
done
# A library is known to dpkg by its own name or that with or without /usr; what is in no package (our
# own) is copied with the rest, so that not all names are known.
for library in "${libraries[@]}"; do printf '%s\n' "$library" "/usr$library" "${library#/usr}"; done | sort -u |
  { xargs -r dpkg-query -S 2> /dev/null || true; } | cut -d: -f1 | sort -u
