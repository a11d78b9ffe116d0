#!/bin/sh
# `flashmoe plot`: refuses what it cannot draw in one sentence, says what is missing, and draws what the program measured.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
script="env PYTHONDONTWRITEBYTECODE=1 python3 $FLASHMOE_SOURCE_DIR/tools/plot/plot.py"
plot="$script --output $work/figures"

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
echo '{"schema": "baseline", "name": "other", "rows": []}' >"$work/cardless.json"
echo '{"schema": "bench", "card": "H100", "rows": [3]}' >"$work/rows.json"
echo '{"schema": "bench", "card": "H100", "rows": []}' >"$work/empty.json"
echo '{"schema": "bench", "card": "H100", "rows": [{"error": "no memory"}]}' >"$work/failed.json"
echo '{"schema": "trace", "card": "H100", "layer": "small"}' >"$work/timeline.json"
traced='"schema": "trace", "card": "H100", "layer": "small", "problem": {"num_ranks": 2}, "tokens_per_rank": [1, 1], "summary":
  {"wall_us": 1, "resident_share": 1, "busy_share": 1, "wait_us": {}}'
printf '{%s, "late": {"rank": 1, "us": 9, "others": [{"rank": 0}]}}' "$traced" >"$work/late.json"
rows_with() {  # file, what its one row has beside its case
  printf '{"schema": "bench", "card": "H100", "rows": [{"model": "small", "tokens_per_rank": 1, "num_ranks": 1, "dtype":
    "bf16", "routing": "uniform", %s}]}' "$2" >"$work/$1"
}
rows_with times.json '"latency_us": "soon"'
rows_with negative.json '"latency_us": -3'
rows_with nan.json '"latency_us": NaN'
rows_with timeless.json '"p95_us": 3'
rows_with others.json '"latency_us": 3, "baselines": 3'
rows_with sizes.json '"latency_us": 3, "problem": [64]'
rows_with experts.json '"latency_us": 3, "problem": {"num_experts": "8"}'
printf '{"schema": "bench", "card": "H100", "bound_card": 3, "rows": [{"error": "no memory"}]}' >"$work/bound.json"
rows_with whole.json '"latency_us": 3'
# shellcheck disable=SC2086  # $plot is a command and its arguments
{
  expect "another schema is refused" 2 "must have a schema of bench, trace, baseline, got 'other': give another file" $plot "$work/other.json"
  expect "a system without a name is refused" 2 'must have a string "name"' $plot "$work/nameless.json"
  expect "rows that are none are refused" 2 'must have an array of objects "rows"' $plot "$work/rows.json"
  expect "a system without a card is refused" 2 'must have a string "card", got None' $plot "$work/cardless.json"
  expect "no rows are refused" 2 'objects "rows", one at least' $plot "$work/empty.json"
  expect "rows that all failed are refused" 2 "no row was measured" $plot "$work/failed.json"
  expect "a timeline without its numbers is refused" 2 "problem must be an object" $plot "$work/timeline.json"
  expect "a late rank without its numbers is refused" 2 '"late": other 0: tokens_us must be a number' $plot "$work/late.json"
  expect "a time that is none is refused" 2 "latency_us must be a number above 0, got 'soon'" $plot "$work/times.json"
  expect "a negative time is refused" 2 "latency_us must be a number above 0, got -3" $plot "$work/negative.json"
  expect "a time that is no number is refused" 2 "latency_us must be a number above 0, got nan" $plot "$work/nan.json"
  expect "a missing time is refused" 2 "latency_us must be a number above 0, got none" $plot "$work/timeless.json"
  expect "other systems that are none are refused" 2 "baselines must be an object" $plot "$work/others.json"
  expect "sizes that are none are refused" 2 "problem must be an object" $plot "$work/sizes.json"
  expect "a size that is no number is refused" 2 "row 0: problem must be .*num_experts.* whole numbers above 0" \
    $plot "$work/experts.json"
  expect "a card of the bound that is none is refused" 2 "bound_card must be a string, got 3" $plot "$work/bound.json"
  expect "a folder that cannot be is refused" 2 "output (/proc/x) must be a folder" $script --output /proc/x \
    "$work/whole.json"
  expect "a file is no folder" 2 "must be a folder" $script --output "$work/whole.json" "$work/whole.json"
  expect "what is no JSON is refused" 2 "cannot be read as JSON" $plot "$work/text.json"
  expect "a file that is missing is refused" 2 "cannot be read as JSON" $plot "$work/missing.json"
  expect "an unknown format is refused" 2 "format (gif) must be svg, png or svg,png" $plot --format gif
  expect "a page of other files is refused" 2 "leave the files out" $script --page "$work/other.json"
  expect "a page elsewhere is refused" 2 "leave --output out" $script --page --output x
  expect "a page of PNGs is refused" 2 "leave --format out" $script --check-page --format png
}

expect "a late rank is measured" 0 "" "$FLASHMOE_PROGRAM" trace --backend cpu --hidden 64 --intermediate 48 --experts 8 \
  --top-k 2 --tokens 16 --ranks 2 --late-rank 1 --late-us 2000 --summary "$work/late.json"
expect "the page has a row of it" 0 "" sh -c "cd '$FLASHMOE_SOURCE_DIR/tools/plot' && python3 -B -c '
import page
assert page.timelines([\"$work/late.json\"]) == []
rows = [line for line in page.late_ranks([\"$work/late.json\"]) if \"2000 (rank 1) | 0 |\" in line]
assert len(rows) == 1, rows'"

# A checkout where nothing is installed yet.
mkdir -p "$work/checkout/tools/plot" "$work/checkout/build"
cp "$FLASHMOE_SOURCE_DIR"/tools/plot/*.py "$work/checkout/tools/plot"
cp "$FLASHMOE_PROGRAM" "$work/checkout/build/flashmoe"
expect "what is missing is named" 2 "needs matplotlib in .*: run .*tools/bootstrap.sh plot" "$work/checkout/build/flashmoe" plot
expect "help needs nothing" 0 "" "$work/checkout/build/flashmoe" plot --help
mv "$work/out" "$work/said"
expect "and it lists the flags" 0 "" grep -q -e "--check-page" "$work/said"

if [ ! -x "$FLASHMOE_SOURCE_DIR/.venv/plot/bin/python" ]; then
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
# Two files of one commit, measured alike: each line says which file it is.
sed "s/\"small\"/\"twice\"/" "$work/sweep.json" >"$work/first.json"
cp "$work/first.json" "$work/second.json"
expect "two files of one layer are drawn" 0 "" "$FLASHMOE_PROGRAM" plot --format svg --output "$work/figures" "$work/first.json" \
  "$work/second.json"
for name in first second; do
  expect "the line of $name is named" 0 "" grep -q "flashmoe, .*, $name<" "$work/figures/latency-tokens-twice-e8-2-cpu.svg"
done
expect "a sweep from no tokens on is measured" 0 "" "$FLASHMOE_PROGRAM" bench --backend cpu --hidden 64 \
  --intermediate 48 --top-k 2 --repeats 2 --experts 8 --ranks 2 --tokens 0,16,64 --name zero --output "$work/zero.json"
expect "it is drawn" 0 "" "$FLASHMOE_PROGRAM" plot --format svg --output "$work/figures" "$work/zero.json"
# The markers of 0, 16 and 64 tokens: equal steps but for a tenth.
marker='<use xlink:href=[^>]* x=.([0-9.]+). y=[^>]*style=.fill: #0b5394'
expect "no tokens do not squeeze the axis" 0 "" sh -c "python3 -c 'import re, sys
x = sorted(float(x) for x in re.findall(\"$marker\", sys.stdin.read()))[-3:]
sys.exit(not 0.9 < (x[1] - x[0]) / (x[2] - x[1]) < 1.1)' <'$work/figures/latency-tokens-zero-e8-2-cpu.svg'"
expect "a file of one row is told what a line needs" 0 \
  "nothing of $work/whole.json is drawn: a line needs rows of one layer, .* two routings of one batch; the thesis" \
  "$FLASHMOE_PROGRAM" plot --format svg --output "$work/figures" "$work/whole.json" "$work/sweep.json"
mv "$work/err" "$work/said"
expect "and the one that is drawn is not" 1 "" grep -q "sweep.json" "$work/said"
expect "a late rank's timeline is told where it stands" 0 "nothing of $work/late.json is drawn: a timeline with a late" \
  "$FLASHMOE_PROGRAM" plot --format svg --output "$work/figures" "$work/late.json"
expect "text stays text" 0 "" grep -q "latency over tokens" "$work/figures/latency-tokens-small-e8-2-cpu.svg"
expect "the program passes on what the script refuses" 2 "must have a schema" "$FLASHMOE_PROGRAM" plot "$work/other.json"
[ "$failures" = 0 ]
