#!/bin/sh
# Explores a model whole.
#   explore.sh MODEL holds SETTING...           no assertion fails and every run ends with all processes finished
#   explore.sh MODEL breaks PATTERN SETTING...  a mutant: spin finds an error whose message contains PATTERN
# MODEL is signals or pairs; settings are listed in MODEL.pml. CC and MODEL_BUILD_DIR (an empty folder) come from the environment.
set -eu
sources=$(cd "$(dirname "$0")" && pwd)
model=$sources/$1.pml
expectation=$2
shift 2
pattern=
if [ "$expectation" = breaks ]; then
  pattern=$1
  shift
fi
command -v spin >/dev/null || { echo "skipped: spin is not installed (apt-get install spin)"; exit 77; }
mkdir -p "$MODEL_BUILD_DIR"
cd "$MODEL_BUILD_DIR"
rm -f -- *.trail

defines=
for setting; do defines="$defines -D$setting"; done
# shellcheck disable=SC2086  # one word a setting
spin -a $defines "$model" >spin.log 2>&1 || { cat spin.log; echo "FAILED: spin cannot read the model"; exit 1; }
optimise=-O1  # of a mutant the compiler sees more than spin does
[ "$expectation" = holds ] || optimise=-O0
"${CC:-cc}" $optimise -w -DSAFETY -DNOREDUCE -DVECTORSZ=2048 -DMEMLIM=4000 -o explore pan.c
./explore -n -m100000 -w22 >explore.log 2>&1 || true
grep -E 'errors:|stored$|elapsed' explore.log || true

if grep -Eq 'max search depth|memory limit|out of memory|Search not completed' explore.log && [ "$expectation" = holds ] &&
  grep -q 'errors: 0' explore.log; then
  cat explore.log
  echo "FAILED: the exploration was cut short"
  exit 1
fi
found=$(grep -E 'assertion violated|invalid end state \(' explore.log || true)
case $expectation in
  holds)
    grep -q 'errors: 0' explore.log && exit 0
    cat explore.log
    # shellcheck disable=SC2086
    spin -t -p -g $defines "$model" 2>&1 | tail -n 200
    echo "FAILED: the protocol breaks: $found" ;;
  breaks)
    case $found in
      ?*"$pattern"*) echo "broken as it should be: $(echo "$found" | cut -c 1-120)"; exit 0 ;;
    esac
    echo "FAILED: wanted an error about '$pattern', got: ${found:-none}" ;;
esac
exit 1
