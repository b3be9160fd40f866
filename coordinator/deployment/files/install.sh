#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts commensal's units for systemd into place. Shows what it does; a second run does nothing.
#
#   commensal-service-install [--check] [--user NAME] [--bin DIR] [--root DIR]
#
#   --user NAME   the account of both daemons, and of the jobs that the coordinator starts on this
#                 machine (default: commensal, which systemd-sysusers makes)
#   --bin DIR     folder of the installed programs (default: that of this script)
#   --root DIR    put everything below this folder, for an image (default: /)
#   --check       changes nothing; ends with 1 if there is something to do
#
# Configuration that is there already (/etc/commensal/*.ini) is yours and stays. It starts nothing:
# at its end it says how. Exit codes: 0 all is there, 1 something is left to do, 2 usage, 4 a file
# cannot be read or written.
set -euo pipefail

fail() { echo "commensal-service-install: $2" >&2; exit "$1"; }

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
check='' user=commensal bin=$here root=''
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1; shift; continue ;;
    -h | --help) sed -n '3,/^set/p' "${BASH_SOURCE[0]}" | sed '/^set/d; s/^# \{0,1\}//'; exit 0 ;;
    --user | --bin | --root) [ $# -ge 2 ] || fail 2 "$1 needs a value" ;;
    *) fail 2 "unknown option: '$1'" ;;
  esac
  case $1 in --user) user=$2 ;; --bin) bin=$2 ;; --root) root=${2%/} ;; esac
  shift 2
done
[[ $user =~ ^[a-z_][a-z0-9_-]*$ ]] || fail 2 "not the name of an account: '$user'"
[ "$user" != root ] || fail 2 "not as root: jobs would be root's"
[[ $bin =~ ^/[A-Za-z0-9_./+-]+$ ]] ||
  fail 2 "units need the programs under an absolute path without spaces: '$bin'"
[ -z "$root" ] || [ -d "$root" ] || fail 4 "no such folder: '$root'"
for program in commensal commensald commensal-coordinator commensal-keeper; do
  [ -x "$bin/$program" ] || fail 4 "not a program: '$bin/$program'"
done
# Beside this script in the sources; where CMake installs it, the files have a folder of their own.
files=$here
[ -e "$files/commensald.service" ] || files=$(cd "$here/../share/commensal/systemd" 2> /dev/null && pwd) ||
  fail 4 "cannot find commensald.service beside '$here'"

todo=0 left=0
leave() { left=$((left + 1)); echo "for you:  $1"; }

# put NAME TARGET: makes a file of ours, with paths filled in, unless it is that already.
put() {
  local target=$root$2 new
  new=$(mktemp "${TMPDIR:-/tmp}/commensal.XXXXXX")
  sed "s|@BIN@|$bin|g; s|@USER@|$user|g; s|@ETC@|/etc/commensal|g; s|@RUN@|/run/commensal|g; s|@STATE@|/var/lib/commensal|g" \
    "$files/$1" > "$new"
  if cmp -s "$new" "$target"; then
    rm -f "$new"
    return
  fi
  todo=$((todo + 1))
  if [ -n "$check" ]; then
    echo "would write $target"
  else
    { mkdir -p "$(dirname "$target")" && install -m 644 "$new" "$target.new" && mv "$target.new" "$target"; } ||
      fail 4 "cannot write '$target'"
    echo "wrote     $target"
  fi
  rm -f "$new"
}

for unit in commensald.service commensal-coordinator.service commensal-backup.service commensal-backup.timer; do
  put "$unit" "/etc/systemd/system/$unit"
done
[ "$user" != commensal ] || put sysusers.conf /etc/sysusers.d/commensal.conf
for name in commensald coordinator; do
  [ -e "$root/etc/commensal/$name.ini" ] || put "$name.ini" "/etc/commensal/$name.ini"
done

# The account must be able to come to the programs: one in root's home folder cannot be started.
folder=$(readlink -f "$bin")
while [ "$folder" != / ]; do
  mode=$(stat -c %a "$folder")
  if [ $((8#$mode & 1)) = 0 ]; then
    leave "$folder is closed to '$user' (mode $mode): install commensal elsewhere, such as /opt/commensal"
  fi
  folder=$(dirname "$folder")
done

if [ "$left" -gt 0 ]; then exit 1; fi
if [ -n "$check" ]; then [ "$todo" = 0 ] || exit 1; fi
if [ "$todo" = 0 ]; then
  echo "all is there: nothing to do"
else
  echo "done; now:"
  [ "$user" != commensal ] || echo "  systemd-sysusers"
  echo "  systemctl daemon-reload"
  echo "  systemctl enable --now commensal-coordinator commensal-backup.timer   # the coordinator's machine"
  echo "  systemctl enable --now commensald                                     # a node that reports to it"
fi
