#!/usr/bin/env bash
# What runs on a TPU VM's host; up.sh copies it there and run.sh calls it by ssh.
#
#   host.sh install REVISION                   unpack the package, make its environment
#   host.sh busy                               the installed revision, if a run uses it
#   host.sh token                              make the token of a Ray that is to start
#   host.sh ray SLICE ROLE HEAD_ADDRESS        start Ray, or join it
#   host.sh start RUN BUCKET EVERY_S WORD...   train, unless it already does
#   host.sh state RUN                          none, running, or ended CODE
#   host.sh progress RUN                       updates that it has made
#   host.sh states                             of every run, a line each
#   host.sh stop                               let every run save, end and copy itself
#   host.sh log RUN LINES [follow]             RUN '' is the one that printed last
#
# All of it lies below the home folder: jigsaw_jax/ and .ray/.
set -euo pipefail

HOME_DIR=$HOME/jigsaw_jax
BIN=$HOME_DIR/.venv/bin
# Ray looks for the token there, and speaks to nobody without it.
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0

say() { echo "$*" >&2; }

install() {
  local -r revision=$1
  mkdir -p "$HOME_DIR" "$HOME/.ray"
  chmod 700 "$HOME/.ray"
  if [[ $(cat "$HOME_DIR/.installed" 2>/dev/null) == "$revision" ]]; then
    say "revision $revision is installed"
    return
  fi
  # Whatever ends this in the middle, the next try does not take it for done; and no
  # file of another revision stays.
  rm -f "$HOME_DIR/.installed"
  find "$HOME_DIR" -mindepth 1 -maxdepth 1 ! -name .venv ! -name runs -exec rm -rf {} +
  tar -xzf "$HOME/jigsaw_jax.tar.gz" -C "$HOME_DIR"
  if [[ ! -x $BIN/python ]]; then
    # The images of TPU VMs have Python 3.10; uv brings a newer one along.
    if command -v python3.11 >/dev/null; then
      python3.11 -m venv "$HOME_DIR/.venv"
    else
      python3 -m pip install --user --quiet uv
      python3 -m uv venv --quiet --seed --python 3.11 "$HOME_DIR/.venv"
    fi
  fi
  "$BIN/python" -m pip install --quiet -e "${HOME_DIR}[tpu,cluster]"
  echo "$revision" >"$HOME_DIR/.installed"
}

# One for each life of the head's Ray: who has another must join it anew, since what it
# knows has died.
token() {
  if [[ -s $HOME/.ray/auth_token ]] && pgrep -x raylet >/dev/null && pgrep -x gcs_server >/dev/null; then return; fi
  (umask 077 && "$BIN/python" -c 'import secrets; print(secrets.token_hex(32))' >"$HOME/.ray/auth_token")
}

# What the VM was told of its slice.
metadata() {
  curl --silent --fail --retry 5 --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

start_ray() {
  local -r slice=$1 role=$2 head=$3
  local hosts number
  local -r own=$(hostname -I | awk '{print $1}')
  local try
  local -a where=(--address="$head:6379")
  chmod 600 "$HOME/.ray/auth_token"
  # A head that replaces another may get its address, but never its token.
  local -r joined="$head $(sha256sum <"$HOME/.ray/auth_token")"
  if [[ $(cat "$HOME/.ray/joined" 2>/dev/null) == "$joined" ]] && pgrep -x raylet >/dev/null; then
    say "Ray runs here and knows $head"
    return
  fi
  "$BIN/ray" get-auth-token --help >/dev/null 2>&1 ||
    say "this Ray is older than 2.52 and has no tokens: only the private network guards it"
  "$BIN/ray" stop --force >/dev/null 2>&1 || true
  if [[ $own == "$head" ]]; then
    # What would watch over an autoscaler has a port without a token.
    where=(--head --port=6379 --dashboard-host=127.0.0.1 --no-monitor)
  fi
  # One entry a host of the slice; JAX counts the hosts as the TPUs do.
  if ! hosts=$(metadata worker-network-endpoints) || ! number=$(metadata agent-worker-number); then
    say "the metadata of this TPU VM must say which hosts its slice has; try again"
    return 1
  fi
  hosts=$(tr ',' '\n' <<<"$hosts" | grep -c .)
  # By these resources the run knows that no sampler may be beside the learner, tells
  # slices apart, and knows when one is whole; an amount of 0 would be none. A worker may
  # come before the head is up.
  for try in 1 2 3 4 5 6 7 8 9 10; do
    if "$BIN/ray" start "${where[@]}" --node-ip-address="$own" --disable-usage-stats \
      --resources="{\"jigsaw_$role\": 1, \"jigsaw_slice:$slice\": $hosts, \"jigsaw_host\": $((number + 1))}"; then
      echo "$joined" >"$HOME/.ray/joined"
      return
    fi
    ((try < 10)) && sleep "${JIGSAW_POLL_S:-6}"
  done
  return 1
}

# Copy a run to the bucket so that each prefix of the copy can be resumed from.
#
# Checkpoints are whole once they have their name, so hard links hold them still; logs
# only grow, and are copied after them. So the logs of the copy reach at least as far as
# its checkpoints, in the snapshot and, as they go up first, in the bucket. What the run
# has deleted goes last.
sync_to() {
  local -r run=$1 bucket=$2
  local -r still=$run.sync
  rm -rf "$still" && mkdir -p "$still"
  # One that the run removes at this moment would be half here, and then in the bucket.
  if [[ -d $run/checkpoints ]]; then cp -al "$run/checkpoints" "$still/checkpoints" || return 1; fi
  rm -rf "$still"/checkpoints/saving-*
  (cd "$run" && find . -mindepth 1 -maxdepth 1 ! -name checkpoints ! -name '.*' -exec cp -a {} "$still" \;)
  gcloud storage rsync --recursive --exclude='^checkpoints/.*' "$still" "$bucket" &&
    gcloud storage rsync --recursive "$still" "$bucket" &&
    gcloud storage rsync --recursive --delete-unmatched-destination-objects "$still" "$bucket"
}

fetch_from() {
  local -r run=$1 bucket=$2
  local found
  if [[ -e $run/config.gin ]]; then return; fi
  # Neither an empty run nor half of one may ever be copied over what is in the bucket.
  if ! found=$(gcloud storage ls "$bucket/**" 2>&1); then
    if [[ $found == *"matched no objects"* ]]; then return; fi
    say "$bucket can't be read: $found"
    return 1
  fi
  say "going on with what is in $bucket"
  rm -rf "$run.fetched"
  mkdir "$run.fetched"
  gcloud storage rsync --recursive "$bucket" "$run.fetched" || return 1
  rm -rf "$run"
  mv "$run.fetched" "$run"
}

# The process that stays: main, and the copies beside it.
supervise() {
  local -r run=$1 bucket=$2 every_s=$3
  local child code=0 left
  shift 3
  cd "$HOME_DIR"
  if [[ -n $bucket ]] && ! fetch_from "$run" "$bucket"; then
    echo 1 >"$run.exit"
    return
  fi
  "$BIN/python" -m jigsaw_jax.main "$@" --run_dir "$run" --cluster auto &
  child=$!
  # It saves and ends, and the loop below copies what it saved.
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM
  while kill -0 "$child" 2>/dev/null; do
    for ((left = every_s; left > 0; left--)); do
      kill -0 "$child" 2>/dev/null || break
      sleep 1 || true
    done
    if [[ -n $bucket && -d $run ]]; then
      sync_to "$run" "$bucket" || say "the copy to $bucket failed; the next one follows"
    fi
  done
  wait "$child" || code=$?
  # Told to end, by down.sh or by a host that is about to go, it ends well but is not done.
  if ((code == 0)) && grep -qs '"is_stopped": true' "$run/summary.json"; then code=143; fi
  if [[ -n $bucket && -d $run ]] && ! sync_to "$run" "$bucket"; then
    say "the last copy to $bucket failed: $run is on this host alone"
    if ((code == 0 || code == 143)); then code=1; fi
  fi
  echo "$code" >"$run.exit"
}

# After a reboot the number may be another process's.
is_running() { [[ -s $1.pid ]] && grep -qz supervise "/proc/$(cat "$1.pid")/cmdline" 2>/dev/null; }

busy() {
  local pid
  for pid in "$HOME_DIR"/runs/*.pid; do
    if is_running "${pid%.pid}"; then
      cat "$HOME_DIR/.installed"
      return
    fi
  done
}

start() {
  local -r run=$HOME_DIR/runs/$1
  if is_running "$run"; then
    say "$1 runs already"
    return
  fi
  mkdir -p "$HOME_DIR/runs"
  rm -f "$run.exit"
  setsid nohup bash "$HOME/host.sh" supervise "$run" "${@:2}" >>"$run.log" 2>&1 </dev/null &
  echo $! >"$run.pid"
}

state() {
  local -r run=$HOME_DIR/runs/$1
  if is_running "$run"; then
    echo running
  elif [[ -s $run.exit ]]; then
    echo "ended $(cat "$run.exit")"
  else
    echo none
  fi
}

progress() { wc -l 2>/dev/null <"$HOME_DIR/runs/$1/metrics.jsonl" || echo 0; }

states() {
  local log name
  for log in "$HOME_DIR"/runs/*.log; do
    [[ -e $log ]] || continue
    name=$(basename "$log" .log)
    echo "$name $(state "$name")"
  done
}

stop() {
  local pid run left
  for pid in "$HOME_DIR"/runs/*.pid; do
    run=${pid%.pid}
    if is_running "$run"; then
      kill -TERM "$(cat "$pid")"
      # One that hangs must not keep the slices, which cost.
      for ((left = ${JIGSAW_STOP_S:-900}; left > 0; left--)); do
        is_running "$run" || break
        sleep 1
      done
      if is_running "$run"; then
        say "$run did not end; what is in the bucket is its last copy"
        return 1
      fi
    fi
  done
}

log() {
  local file=$HOME_DIR/runs/$1.log
  if [[ -z $1 ]]; then
    # shellcheck disable=SC2012 # run.sh lets no other than plain names in.
    file=$(ls -t "$HOME_DIR"/runs/*.log 2>/dev/null | head -n 1) || true
  fi
  if [[ -z $file ]]; then
    say "no run was started here yet"
    return 1
  fi
  if [[ -n ${3:-} ]]; then tail -n "$2" -F "$file"; else tail -n "$2" "$file"; fi
}

# Read whole before it begins: an install may replace this file while a run is under way.
{
  case ${1:-} in
    install) install "$2" ;;
    busy) busy ;;
    token) token ;;
    ray) start_ray "$2" "$3" "$4" ;;
    start) start "${@:2}" ;;
    supervise) supervise "${@:2}" ;;
    state) state "$2" ;;
    progress) progress "$2" ;;
    states) states ;;
    stop) stop ;;
    log) log "${@:2}" ;;
    *)
      say "host.sh has no command '${1:-}'"
      exit 2
      ;;
  esac
  exit
}
