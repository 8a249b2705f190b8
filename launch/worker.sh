#!/usr/bin/env bash
# What launch/tpu_vm.py has each host of a TPU slice do, in the copy of the tree that it lies in.
#
#   worker.sh install         the locked versions, into .venv; says what they are
#   worker.sh busy            says what is running: "busy ID COMMAND"
#   worker.sh run ID COMMAND  starts COMMAND, unless that ID was started before, so that it outlives
#                             the connection; shows its output from the start until it ends
#   worker.sh stop            SIGTERM, which saves, and waits
#
# Every line of output begins with "SLICE-HOST|"; the last one is "SLICE-HOST=EXIT CODE".
set -uo pipefail
cd "$(dirname "$0")/.."
job=.job # what was started: its id, command, process, output and exit code

metadata() {
  curl -sf --retry 5 -H 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# Of several slices, which; of its hosts, which.
host="$(metadata tpu-env | sed -n "s/^MEGASCALE_SLICE_ID: *'\(.*\)'/\1/p")"
host="${host:-0}-$(metadata agent-worker-number || echo 0)"

install() (
  set -e
  export PATH="$HOME/.local/bin:$PATH"
  lock="$(cat setup.py constraints.txt | sha256sum)"
  if [ "$(cat .venv/locked 2>/dev/null)" != "$lock" ]; then
    command -v uv >/dev/null || python3 -m pip install --quiet --user uv
    # The images of TPU VMs have a Python that is too old, and not all the same.
    uv venv --quiet --clear --python 3.11 .venv
    uv pip install --quiet --python .venv/bin/python -c constraints.txt -e '.[tpu,gcs,tfds]'
    echo "$lock" >.venv/locked
  fi
  versions="$(uv pip freeze --python .venv/bin/python --exclude-editable)"
  echo "versions $(echo "$versions" | sha256sum)"
)

is_running() { [ -f $job/process ] && kill -0 "$(cat $job/process)" 2>/dev/null; }

busy() { if is_running; then echo "busy $(cat $job/id) $(cat $job/command)"; fi; }

stop() {
  if is_running; then
    kill -TERM "$(cat $job/process)"
    while is_running; do sleep 0.5; done
  fi
}

run() {
  local id="$1"
  shift
  if [ "$(cat $job/id 2>/dev/null)" != "$id" ]; then
    if is_running; then
      echo "another run is going on: $(cat $job/command)"
      return 2
    fi
    rm -rf $job && mkdir $job
    echo "$id" >$job/id
    echo "$*" >$job/command
    touch $job/output
    # In a session of its own: a connection that breaks does not reach it.
    setsid bash -c '
      [ -f .environment ] && . ./.environment
      export PATH="$PWD/.venv/bin:$PATH"
      "$@" >>'$job'/output 2>&1 &
      echo $! >'$job'/process
      wait $!
      echo $? >'$job'/exit_code
    ' _ "$@" </dev/null >/dev/null 2>&1 &
    while [ ! -s $job/process ]; do sleep 0.1; done
  fi
  tail -n +1 -f --pid="$(cat $job/process)" $job/output
  for _ in 1 2 3 4 5 6 7 8 9 10; do # the one who waits for it writes it down
    [ -s $job/exit_code ] && return "$(cat $job/exit_code)"
    sleep 0.2
  done
  return 255
}

"$@" 2>&1 | sed -u "s/^/$host|/"
# On a line of its own, whatever another host has just begun to say on the same stream.
printf '\n%s=%s\n' "$host" "${PIPESTATUS[0]}"
