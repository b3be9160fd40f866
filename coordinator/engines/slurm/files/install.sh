#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts commensal's files into a Slurm configuration. Shows what it does; a second run does nothing.
#
#   commensal-slurm-install --etc DIR [--check]
#
#   --etc DIR       folder of slurm.conf, usually /etc/slurm
#   --plugin FILE   the SPANK plugin (default: beside this script's files)
#   --plugins DIR   where the plugin goes (default: the folder --etc)
#   --auto PROGRAM  commensal-slurm-auto as all nodes have it (default: beside this script)
#   --run DIR       where prolog and epilog keep their notes (default: /run/commensal/slurm)
#   --check         changes nothing; ends with 1 if there is something to do
#
# Files that it changes are kept beside themselves as NAME.before-commensal (the first time only).
# What is yours to decide it leaves to you and says so: partitions, seats of nodes, and lines that
# slurm.conf has already with another value. Exit codes: 0 all is there, 1 something is left to do,
# 2 usage, 4 a file cannot be read or written.
set -euo pipefail

fail() { echo "commensal-slurm-install: $2" >&2; exit "$1"; }

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
etc='' check='' run=/run/commensal/slurm plugins='' plugin='' auto=''
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1; shift; continue ;;
    -h | --help) sed -n '3,/^set/p' "${BASH_SOURCE[0]}" | sed '/^set/d; s/^# \{0,1\}//'; exit 0 ;;
    --etc | --run | --plugins | --plugin | --auto) [ $# -ge 2 ] || fail 2 "$1 needs a value" ;;
    *) fail 2 "unknown option: '$1'" ;;
  esac
  case $1 in --etc) etc=$2 ;; --run) run=$2 ;; --plugins) plugins=$2 ;; --plugin) plugin=$2 ;; --auto) auto=$2 ;; esac
  shift 2
done
[ -n "$etc" ] || fail 2 "--etc DIR is missing: the folder of slurm.conf"
[ -d "$etc" ] || fail 4 "no such folder: '$etc'"
conf=$etc/slurm.conf
[ -r "$conf" ] || fail 4 "cannot read '$conf'"
plugins=${plugins:-$etc}
# Beside this script in the sources; where CMake installs it, the files have a folder of their own.
files=$here
[ -e "$files/job_submit.lua" ] || files=$(cd "$here/../share/commensal/slurm" 2> /dev/null && pwd) ||
  fail 4 "cannot find job_submit.lua beside '$here'"
plugin=${plugin:-$files/commensal_spank.so}
if [ -n "$auto" ]; then
  [[ $auto == /* && -x $auto ]] || fail 4 "--auto is no program with its whole path: '$auto'"
elif [ -x "$here/commensal-slurm-auto" ]; then
  auto=$here/commensal-slurm-auto
fi
# It stands in a shell's word, in a text of Lua, and in what sed puts there.
case $auto in *["'\"\\|&"]* | *$'\n'*) fail 2 "--auto has a character that it may not have: '$auto'" ;; esac

todo=0 left=0
say() { echo "$1"; }
leave() { left=$((left + 1)); say "for you:  $1"; }

# put TARGET MODE: makes a file of what comes on stdin, unless it is that already.
put() {
  local new
  new=$(mktemp "${TMPDIR:-/tmp}/commensal.XXXXXX")
  cat > "$new"
  if cmp -s "$new" "$1"; then
    rm -f "$new"
    return
  fi
  todo=$((todo + 1))
  if [ -n "$check" ]; then
    say "would write $1"
  else
    if [ -e "$1" ] && [ ! -e "$1.before-commensal" ]; then cp -p "$1" "$1.before-commensal"; fi
    { install -m "$2" "$new" "$1.new" && mv "$1.new" "$1"; } || fail 4 "cannot write '$1'"
    say "wrote     $1"
  fi
  rm -f "$new"
}

# The value of a key in slurm.conf, as Slurm reads it: any case, the last one counts.
value_of() {
  sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\([^#]*[^#[:space:]]\).*/\1/Ip" "$conf" | tail -n 1
}

# want KEY VALUE: a line for our own file, if slurm.conf has none; else ours must be in its list.
own=''
want() {
  local value
  value=$(value_of "$1")
  if [ -z "$value" ]; then
    own+="$1=$2"$'\n'
  elif [[ ,${value,,}, != *,${2,,},* ]]; then
    leave "slurm.conf has $1=$value: add $2"
  fi
}

if [ -e "$etc/job_submit.lua" ] && ! grep -q "commensal" "$etc/job_submit.lua"; then
  leave "$etc/job_submit.lua is your own: call the functions of $files/job_submit.lua in it"
else
  put "$etc/job_submit.lua" 644 < <(sed "s|@AUTO@|$auto|" "$files/job_submit.lua")
  [ -n "$auto" ] || [ "$todo" = 0 ] || say "no commensal-slurm-auto beside '$here': sbatch --commensal=auto is refused"
fi
for hook in prolog epilog; do
  put "$etc/commensal-$hook.sh" 755 < <(sed "s|@RUN_DIR@|$run|g" "$files/$hook.sh")
done
if [ -r "$plugin" ]; then
  put "$plugins/commensal_spank.so" 755 < "$plugin"
  line="optional $plugins/commensal_spank.so"
  put "$etc/plugstack.conf" 644 < <(
    grep -vF commensal_spank.so "$etc/plugstack.conf" 2> /dev/null || :
    echo "$line"
  )
else
  leave "no SPANK plugin at $plugin: build it where libslurm-dev is installed, then run this again"
fi

want JobSubmitPlugins lua
want PlugStackConfig "$etc/plugstack.conf"
want Prolog "$etc/commensal-prolog.sh"
want Epilog "$etc/commensal-epilog.sh"
want PrologFlags Alloc
gres=$(value_of GresTypes)
for kind in gpu seat; do
  if [ -z "$gres" ]; then continue; fi
  [[ ,${gres,,}, == *,$kind,* ]] || leave "slurm.conf has GresTypes=$gres: add $kind"
done
[ -n "$gres" ] || own+="GresTypes=gpu,seat"$'\n'
put "$etc/commensal.conf" 644 < <(
  printf '# Written by commensal-slurm-install; slurm.conf includes it.\n%s' "$own"
)
if ! grep -qi "^[[:space:]]*include[[:space:]].*commensal.conf" "$conf"; then
  put "$conf" 644 < <(cat "$conf" && echo "include $etc/commensal.conf")
fi
for partition in guaranteed opportunistic; do
  grep -qi "^[[:space:]]*PartitionName=${partition}[[:space:]]" "$conf" ||
    leave "slurm.conf has no partition '$partition' (docs/slurm.md, step 4)"
done
while read -r name; do
  leave "node $name offers gpu and no seat (docs/slurm.md, step 3)"
done < <(sed -n 's/^[[:space:]]*NodeName=\([^[:space:]]*\)\(.*Gres=[^[:space:]]*gpu.*\)/\1 \2/Ip' "$conf" |
  grep -vi 'seat' | cut -d' ' -f1)

if [ "$left" -gt 0 ]; then
  say "$left left for you; then run this again"
  exit 1
fi
if [ -n "$check" ] && [ "$todo" -gt 0 ]; then exit 1; fi
if [ "$todo" = 0 ]; then say "all is there: nothing to do"; else say "done: scontrol reconfigure, or restart slurmctld and slurmd"; fi
