#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Slurm cluster of several nodes on one machine, for tests: real slurmctld,
# slurmd and munged, fake GPUs, no systemd, no cgroups, nothing outside DIR.
#
#   cluster.sh start DIR [-n NODES] [-g GPUS] [-c CPUS] [-p PORT] [-t SECONDS]
#   cluster.sh env   DIR            prints the line that points Slurm's commands here
#   cluster.sh status DIR
#   cluster.sh node-kill DIR NODE   kill -9 of a node's daemon and of its tasks
#   cluster.sh node-start DIR NODE
#   cluster.sh ctl-stop DIR | ctl-start DIR     the controller alone
#   cluster.sh stop  DIR
#
# DIR is a folder that other accounts may enter, for munge: /tmp/cluster, say.
#
# -n  nodes n1..nN (3)          -g  fake GPUs a node (2)      -c  cores a node (8)
# -p  first TCP port on 127.0.0.1, the nodes use the next N (a free range is chosen)
# -t  seconds until a silent node counts as down (10)
#
# Needs Debian's slurm-wlm and munge, which are built with --enable-multiple-slurmd
# (`scontrol show config` says MULTIPLE_SLURMD = Yes); and gcc and libslurm-dev
# for the SPANK plugin. Other environment: SPANK_SO=FILE takes a ready plugin
# instead of building it; EXTRA_CONF=FILE is appended to slurm.conf;
# SLURM_AUTO=FILE is the program of sbatch --commensal=auto, else the one in the
# PATH or in .venv/bin beside the sources.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
product=$(cd "$here/../../coordinator/engines/slurm/files" && pwd)
export PATH=$PATH:/usr/sbin:/sbin

die() { echo "cluster.sh: $*" >&2; exit 1; }

# True while the process lives. A zombie that nobody reaps counts as dead:
# in a container PID 1 often does not collect children.
alive() {
  local state
  state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
  [ -n "$state" ] && [ "$state" != Z ] && [ "$state" != X ]
}

# A daemon's pid, from its pid file, if it runs and is the program we think it is.
pid_of() { # FILE PROGRAM
  local pid
  [ -s "$1" ] || return 1
  pid=$({ tr -dc 0-9 < "$1"; } 2> /dev/null) || return 1
  [ -n "$pid" ] && alive "$pid" && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == ${2:0:15}* ]] && echo "$pid"
}

end_daemon() { # FILE PROGRAM [SIGNAL]
  local pid i
  pid=$(pid_of "$1" "$2") || return 0
  kill "-${3:-TERM}" "$pid" 2>/dev/null || return 0
  for i in $(seq 100); do
    alive "$pid" || { rm -f "$1"; return 0; }
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
  rm -f "$1"
}

# The pids of a node's job steps: each slurmstepd, known by the log file it holds
# open, and everything below it.
node_tasks() { # NODE
  local p
  for p in /proc/[0-9]*; do
    [ "$(cat "$p/comm")" = slurmstepd ] || continue
    readlink "$p"/fd/* | grep -qxF "$dir/log/slurmd-$1.log" && descendants "${p#/proc/}"
  done 2> /dev/null || true
}

descendants() { # PID
  local child
  echo "$1"
  # shellcheck disable=SC2013  # words between spaces, no lines
  for child in $(cat "/proc/$1/task"/*/children); do descendants "$child"; done
}

kill_tasks() { # NODE
  local p
  for p in $(node_tasks "$1"); do kill -KILL "$p" 2> /dev/null || true; done
}

# The first of COUNT neighbouring ports that nobody listens on, below the range
# from which the system takes ports for outgoing connections.
free_ports() { # COUNT
  local first port
  for _ in $(seq 50); do
    first=$((16000 + RANDOM % 12000))
    for port in $(seq "$first" $((first + $1 - 1))); do
      (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null && continue 2
    done
    echo "$first"
    return
  done
  die "found no free ports"
}

fill() { # TEMPLATE TARGET
  local text key
  text=$(cat "$1")
  for key in "${!v[@]}"; do text=${text//@$key@/${v[$key]}}; done
  printf '%s\n' "$text" > "$2"
}

start_node() { mkdir -p "$dir/spool/$1"; slurmd -N "$1"; }

start() {
  local nodes=3 gpus=2 cpus=8 port=0 timeout=10 opt i lines so auto
  while getopts n:g:c:p:t: opt; do
    case $opt in
      n) nodes=$OPTARG ;; g) gpus=$OPTARG ;; c) cpus=$OPTARG ;;
      p) port=$OPTARG ;; t) timeout=$OPTARG ;; *) die "unknown option" ;;
    esac
  done
  for i in slurmctld slurmd munged scontrol; do command -v "$i" > /dev/null || die "$i is not installed"; done
  # Slurm and munge look the machine's own name up all the time; where that fails
  # each look-up waits for a name server.
  timeout 3 getent hosts "$(hostname)" > /dev/null || die "the name $(hostname) does not resolve: add '127.0.0.1 $(hostname)' to /etc/hosts"
  # Unix socket paths end at 107 bytes; slurmstepd's is DIR/spool/NODE/NODE_JOB.STEP.
  [ ${#dir} -le 60 ] || die "DIR is too long for socket paths (${#dir} characters, 60 at most)"
  [ "$port" != 0 ] || port=$(free_ports $((nodes + 1)))
  [ ! -e "$conf" ] || die "$dir already holds a cluster: stop it and remove the folder first"

  mkdir -p "$dir"/{etc,etc/plugins,run,log,state,spool,dev}
  # munged wants folders that others can enter but not write.
  chmod 755 "$dir" "$dir"/{etc,run,log,state,spool,dev}

  for i in $(seq 0 $((gpus - 1))); do ln -s /dev/null "$dir/dev/gpu$i"; done

  lines=
  for i in $(seq "$nodes"); do
    lines+="NodeName=n$i NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((port + i)) Sockets=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=4000 Gres=gpu:$gpus,seat:$gpus Feature=commensal State=UNKNOWN"$'\n'
  done

  declare -A v=(
    [DIR]=$dir [HOSTNAME]=$(hostname) [USER]=$(id -un) [CTLD_PORT]=$port
    [SLURMD_TIMEOUT]=$timeout [NODES]=$lines [LAST_GPU]=$((gpus - 1)) [OPP_CPUS]=$cpus
  )
  fill "$here/templates/slurm.conf.in" "$conf"
  [ -z "${EXTRA_CONF:-}" ] || cat "$EXTRA_CONF" >> "$conf"
  fill "$here/templates/gres.conf.in" "$dir/etc/gres.conf"
  so=${SPANK_SO:-}
  if [ -z "$so" ]; then
    so=$dir/etc/built.so
    "${CC:-cc}" -std=c11 -O1 -Wall -Wextra -Werror -fPIC -shared -o "$so" "$product/commensal_spank.c"
  fi
  auto=${SLURM_AUTO:-$(command -v commensal-slurm-auto || readlink -e "$here/../../.venv/bin/commensal-slurm-auto" || true)}
  "$product/install.sh" --etc "$dir/etc" --run "$dir/run/jobs" --plugin "$so" --plugins "$dir/etc/plugins" \
    ${auto:+--auto "$auto"} \
    > "$dir/log/install.log" || { cat "$dir/log/install.log" >&2; die "the installer left something to do"; }

  (umask 077; head -c 1024 /dev/urandom > "$dir/etc/munge.key")
  munged --key-file="$dir/etc/munge.key" --socket="$dir/run/munge.sock" --pid-file="$dir/run/munged.pid" \
         --log-file="$dir/log/munged.log" --seed-file="$dir/state/munge.seed"
  slurmctld
  for i in $(seq "$nodes"); do start_node "n$i"; done

  for i in $(seq 100); do
    [ "$(sinfo -h -N -p guaranteed -t idle -o %N 2>/dev/null | wc -l)" = "$nodes" ] && break
    [ "$i" -lt 100 ] || { status; die "the nodes did not come up; see $dir/log"; }
    sleep 0.1
  done
  status
}

status() { sinfo -N -o "%N %P %T %G %E"; squeue -o "%i %P %T %r %N %b"; }

stop() {
  local f n
  # Jobs first, while the daemons can still clean up after them.
  if pid_of "$dir/run/slurmctld.pid" slurmctld > /dev/null; then
    scancel --quiet --user="$(id -un)" 2>/dev/null || true
    for n in $(seq 50); do
      [ -z "$(squeue -h -t running,completing 2>/dev/null)" ] && break
      sleep 0.1
    done
  fi
  # By their folders: a slurmd that ends removes its pid file, and its tasks may still run.
  for f in "$dir"/run/slurmd-*.pid; do
    if n=$(pid_of "$f" slurmd); then kill "$n" 2> /dev/null || true; fi
  done
  for f in "$dir"/spool/*; do
    [ -d "$f" ] || continue
    n=${f##*/}
    end_daemon "$dir/run/slurmd-$n.pid" slurmd
    kill_tasks "$n"
  done
  end_daemon "$dir/run/slurmctld.pid" slurmctld
  end_daemon "$dir/run/munged.pid" munged
  rm -f "$dir/run/munge.sock"*
}

[ $# -ge 2 ] || { sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '/^set/d; s/^# \{0,1\}//'; exit 2; }
verb=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
conf=$dir/etc/slurm.conf
export SLURM_CONF=$conf
shift 2
case $verb in
  start) start "$@" ;;
  stop) stop ;;
  status) status ;;
  env) echo "export SLURM_CONF=$conf" ;;
  node-kill)
    [ $# = 1 ] || die "which node?"
    end_daemon "$dir/run/slurmd-$1.pid" slurmd KILL
    kill_tasks "$1" ;;
  node-start) [ $# = 1 ] || die "which node?"; start_node "$1" ;;
  ctl-stop) end_daemon "$dir/run/slurmctld.pid" slurmctld ;;
  ctl-start) slurmctld ;;
  *) die "unknown verb $verb" ;;
esac
