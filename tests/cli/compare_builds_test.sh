#!/bin/sh
# tools/compare_builds.py: every case with every build, in turns; a record grows by a run at a time; bad input in one sentence.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compare=$FLASHMOE_SOURCE_DIR/tools/compare_builds.py
fail() { echo "FAILED: $*"; exit 1; }

# A program that notes how it was called, and then is the real one.
for name in one two; do
  printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\nexec "%s" "$@"\n' "$name" "$work" "$FLASHMOE_PROGRAM" >"$work/$name"
  chmod +x "$work/$name"
done
run() {
  python3 "$compare" one="$work/one" two="$work/two" --backend cpu --warm-up 1 --repeats 2 --rest-ms 0 \
    --case small=32/16/4/2:3,5:2 --output "$work/record.json" --what "a test" --commit abc "$@"
}
run >"$work/table"
[ "$(cut -d' ' -f1 "$work/calls" | tr '\n' ' ')" = "one two one two " ] || fail "builds do not take turns: $(cat "$work/calls")"
grep -q -- "--hidden 32 --intermediate 16 --experts 4 --top-k 2 --tokens 3,5 --ranks 2" "$work/calls" || fail "sizes do not arrive"
grep -Eq '^small +5 +2 +[0-9.]+ [0-9.]+ +[0-9.]+ [0-9.]+$' "$work/table" || fail "no row of two times a build: $(cat "$work/table")"
run --passes 1 >/dev/null
python3 - "$work/record.json" <<'CHECK' || fail "the record is not as it should be"
import json, sys
record = json.load(open(sys.argv[1]))
assert record["schema"] == "engines" and record["commit"] == "abc" and record["what"] == "a test", record
counts = {run: sum(row["run"] == run for row in record["rows"]) for run in (1, 2)}
assert counts == {1: 8, 2: 4}, counts
assert all(row["latency_us"] > 0 and row["model"] == "small" and row["num_ranks"] == 2 for row in record["rows"])
CHECK

expect_error() {  # pattern, arguments
  pattern=$1
  shift
  if python3 "$compare" "$@" >/dev/null 2>"$work/err"; then fail "accepted: $*"; fi
  grep -q -- "$pattern" "$work/err" || fail "$* says: $(cat "$work/err")"
}
expect_error "'one' is no NAME=PROGRAM" one --case thesis:1:1
expect_error "'thesis:1' is no LAYER:TOKENS:RANKS" a=b --case thesis:1
expect_error "wanted NAME=HIDDEN/INTERMEDIATE/EXPERTS/TOP_K" a=b --case x=1/2:1:1
expect_error "every build needs a name of its own" a=b a=c --case thesis:1:1
expect_error "ended with 2: .*experts" one="$work/one" --backend cpu --case x=32/16/3/2:1:2
