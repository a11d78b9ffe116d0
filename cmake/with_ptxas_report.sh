#!/bin/sh
# Runs a compilation by nvcc and keeps what ptxas says of each kernel's registers and spills beside the object (-o), in
# OBJECT.ptxas: tests/gpu/resource_usage_test.sh reads it. Whatever else the compiler says goes on to standard error.
set -u
object='' before=''
for argument; do
  [ "$before" = -o ] && object=$argument
  before=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.said"
status=$?
about_kernels='^ptxas info|bytes stack frame'
grep -E "$about_kernels" "$object.said" >"$object.ptxas"
grep -vE "$about_kernels" "$object.said" >&2
rm -f "$object.said"
exit $status
