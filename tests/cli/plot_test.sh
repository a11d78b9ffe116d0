#!/bin/sh
# `flashmoe plot`: refuses what it cannot draw in one sentence, says what is missing, and draws what the program measured.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
plot="env PYTHONDONTWRITEBYTECODE=1 python3 $FLASHMOE_SOURCE_DIR/tools/plot/plot.py --output $work/figures"

expect() {  # description, status wanted, pattern wanted on stderr, command...
  description=$1 wanted=$2 pattern=$3
  shift 3
  status=0
  "$@" >"$work/out" 2>"$work/err" || status=$?
  if [ "$status" = "$wanted" ] && { [ -z "$pattern" ] || grep -q -e "$pattern" "$work/err"; }; then
    echo "ok: $description"
  else
    echo "FAILED: $description: wanted status $wanted and '$pattern', got status $status and '$(cat "$work/err")'"
    failures=$((failures + 1))
  fi
}

echo '{"schema": "other"}' >"$work/other.json"
echo 'no JSON' >"$work/text.json"
echo '{"schema": "baseline", "rows": []}' >"$work/nameless.json"
echo '{"schema": "bench", "rows": [3]}' >"$work/rows.json"
echo '{"schema": "bench", "rows": [{"latency_us": "soon"}]}' >"$work/times.json"
# shellcheck disable=SC2086  # $plot is a command and its arguments
{
  expect "another schema is refused" 2 "must have a schema of bench, trace, baseline, got 'other': give another file" $plot "$work/other.json"
  expect "a system without a name is refused" 2 'must have a string "name"' $plot "$work/nameless.json"
  expect "rows that are none are refused" 2 'must have an array of objects "rows"' $plot "$work/rows.json"
  expect "a time that is none is refused" 2 "latency_us must be a number, got 'soon'" $plot "$work/times.json"
  expect "what is no JSON is refused" 2 "cannot be read as JSON" $plot "$work/text.json"
  expect "a file that is missing is refused" 2 "cannot be read as JSON" $plot "$work/missing.json"
  expect "an unknown format is refused" 2 "format (gif) must be svg, png or svg,png" $plot --format gif
  expect "a page of other files is refused" 2 "leave the files out" $plot --page "$work/other.json"
}

if [ ! -x "$FLASHMOE_SOURCE_DIR/.venv/plot/bin/python" ]; then
  expect "what is missing is named" 2 "needs matplotlib in .*: run .*tools/bootstrap.sh plot" "$FLASHMOE_PROGRAM" plot
  echo "skipped: drawing needs matplotlib: run tools/bootstrap.sh plot"
  [ "$failures" = 0 ] && exit 77
  exit 1
fi

expect "a sweep is measured" 0 "" "$FLASHMOE_PROGRAM" bench --backend cpu --hidden 64 --intermediate 48 --top-k 2 --repeats 2 \
  --experts 8,16 --ranks 1,2 --tokens 4,16 --routing uniform,all-to-one --name small --output "$work/sweep.json"
expect "a timeline is summarised" 0 "" "$FLASHMOE_PROGRAM" trace --backend cpu --hidden 64 --intermediate 48 --experts 8 --top-k 2 \
  --tokens 16 --summary "$work/trace.json"
expect "both are drawn" 0 "" "$FLASHMOE_PROGRAM" plot --format svg --output "$work/figures" "$work/sweep.json" "$work/trace.json"
for name in latency-tokens-small-e8-2-cpu latency-experts-cpu latency-ranks-cpu latency-routing-small-e16-1-16-cpu \
  thesis-latency-gpus thesis-sm-utilisation; do
  expect "$name is there" 0 "" grep -q "<svg" "$work/figures/$name.svg"
done
expect "text stays text" 0 "" grep -q "latency over tokens" "$work/figures/latency-tokens-small-e8-2-cpu.svg"
expect "the program passes on what the script refuses" 2 "must have a schema" "$FLASHMOE_PROGRAM" plot "$work/other.json"
[ "$failures" = 0 ]
