#!/bin/sh
# tools/bootstrap.sh and tools/cuda_root.sh against machines made of stand-ins: a PATH that holds a few plain tools
# and a dpkg-query, id and apt-get that say what the case needs. Nothing is installed.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$FLASHMOE_SOURCE_DIR/tools" "$work/tools"
bootstrap=$work/tools/bootstrap.sh
cuda_root=$work/tools/cuda_root.sh
packages=$(grep -v '^#' "$work/tools/debian-packages.txt" | cut -d' ' -f1)
failures=0

# A machine with these commands: plain ones are linked, others come as a script from `stand_in`.
new_machine() {
  rm -rf "$work/bin" "$work/.venv"
  mkdir "$work/bin"
  for tool in sh grep sed tr cut cmp cp mkdir rm dirname basename flock cat; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
  done
  mkdir -p "$work/cuda13/bin" "$work/cuda13/include/cccl/cuda"
  : >"$work/cuda13/include/cccl/cuda/atomic"
  toolkit "$work/cuda13" 13.0
}
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"; chmod +x "$work/bin/$1"; }
toolkit() { printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V0"\n' "$2" >"$1/bin/nvcc"; chmod +x "$1/bin/nvcc"; }
installed() {  # every package of the list but those named
  lines=
  for package in $packages; do
    case " $* " in *" $package "*) ;; *) lines="$lines echo '$package installed';" ;; esac
  done
  stand_in dpkg-query "$lines echo 'spin-old config-files'"
}
on_machine() { status=0; env -i PATH="$work/bin" "$@" >"$work/out" 2>"$work/err" || status=$?; }

expect() {  # description, status wanted, exact stdout wanted, pattern wanted on stderr
  if [ "$status" != "$2" ] || [ "$(cat "$work/out")" != "$3" ] || ! grep -q -e "$4" "$work/err" 2>/dev/null && [ -n "$4" ]; then
    echo "FAILED: $1"
    echo "  wanted: status $2, stdout '$3', stderr matching '$4'"
    echo "  got:    status $status, stdout '$(cat "$work/out")', stderr '$(cat "$work/err")'"
    failures=$((failures + 1))
  else
    echo "ok: $1"
  fi
}
expect_quiet() { expect "$1" 0 "" ""; [ ! -s "$work/err" ] || { echo "FAILED: $1: stderr '$(cat "$work/err")'"; failures=$((failures + 1)); }; }

new_machine
installed
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap"
expect_quiet "does and says nothing where nothing is missing"

new_machine
installed ninja-build spin
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap" --dry-run
expect "a dry run names what is missing and no more" 0 "would install packages: ninja-build spin" ""

new_machine
installed $packages
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap" --dry-run
expect "a bare system is missing the whole list" 0 "would install packages: $(echo $packages)" ""

new_machine
installed spin libfmt-dev
stand_in apt-get 'echo "apt-get called" && exit 1'
stand_in id 'echo 1000'
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap"
expect "without root it says what root must run" 1 "" "sudo apt-get update && sudo apt-get install --no-install-recommends spin libfmt-dev'"

new_machine
installed spin
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap"
expect "without apt-get it says what is missing" 1 "" "are missing: spin\. There is no apt-get here"

new_machine
installed spin libfmt-dev
stand_in id 'echo 0'
stand_in apt-get 'echo "$@" >>'"$work/apt.log"
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap"
expect "root installs it" 0 "" "installing spin libfmt-dev"
stand_in apt-get 'true'
[ "$(cat "$work/apt.log")" = "update -q
install -q -y --no-install-recommends spin libfmt-dev" ] || { echo "FAILED: apt-get was called with: $(cat "$work/apt.log")"; failures=$((failures + 1)); }

new_machine
installed spin
stand_in id 'echo 0'
stand_in apt-get 'exit 100'
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap"
expect "a failing apt-get is an error" 1 "" "apt-get could not install spin"

new_machine
stand_in python3 'exit 0'
for command in g++ cmake ninja ccache pkg-config; do stand_in $command 'exit 0'; done
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap" --dry-run
expect "without dpkg the commands and headers themselves are looked for" 0 "would install packages: spin" ""

new_machine
installed
on_machine FLASHMOE_USE_WHEEL_CUDA=1 CUDA_PATH="$work/cuda13" sh "$bootstrap" --dry-run
expect "the CUDA wheels are taken when asked for, whatever is there" 0 \
  "would make .venv/tools with: $(grep -v '^#' "$work/tools/requirements-cuda.txt" | tr '\n' ' ')" ""

new_machine
installed
stand_in python3 'echo "no network" >&2; exit 1'
on_machine FLASHMOE_USE_WHEEL_CUDA=1 sh "$bootstrap"
expect "a failing pip is an error" 1 "" "pip could not install requirements-cuda.txt into .venv/tools"

new_machine
installed
printf '[build-system]\nrequires = [\n  "one==1",\n  "two==2",\n]\n[other]\nrequires = [\n' >"$work/pyproject.toml"
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap" --dry-run wheel
expect "what the wheel needs is read from pyproject.toml" 0 "would make .venv/wheel with: one==1 two==2 " ""

new_machine
installed
on_machine CUDA_PATH="$work/cuda13" sh "$bootstrap" --wet-run
expect "an unknown argument is refused" 2 "" "'--wet-run' is unknown"

new_machine
on_machine CUDA_PATH="$work/cuda13" sh "$cuda_root"
expect "CUDA_PATH names the toolkit" 0 "$(cd "$work/cuda13" && pwd -P)" ""

new_machine
mkdir -p "$work/.venv/tools/lib/python3.11/site-packages/nvidia/cu13"
wheel=$work/.venv/tools/lib/python3.11/site-packages/nvidia/cu13
cp -r "$work/cuda13/." "$wheel"
on_machine FLASHMOE_USE_WHEEL_CUDA=1 CUDA_PATH="$work/cuda13" sh "$cuda_root"
expect "the wheels can be forced over a toolkit" 0 "$wheel" ""

toolkit "$wheel" 12.9
on_machine FLASHMOE_USE_WHEEL_CUDA=1 sh "$cuda_root"
expect "a toolkit older than 13.0 is not taken" 1 "" ""

new_machine
stand_in nvcc 'echo "#\$ TOP='"$work/cuda13/bin/.."'" >&2'
on_machine sh "$cuda_root"
expect "a wrapper called nvcc leads to its toolkit" 0 "$(cd "$work/cuda13" && pwd -P)" ""

[ "$failures" = 0 ] && echo "all cases passed"
exit "$((failures > 0))"
