#!/bin/sh
# Installs a build into a temporary folder and uses it from there, as somebody else's project would:
#   consumer_test.sh CMAKE SOURCE_DIR BUILD_DIR VERSION
# Builds and runs the consumer beside this file and every example, and checks what the library exports.
set -eu
cmake=$1 source=$2 build=$3 version=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*"; exit 1; }

"$cmake" --install "$build" --prefix "$work/prefix" >/dev/null

for project in "$source/tests/install/consumer" "$source/examples"; do
  name=$(basename "$project")
  "$cmake" -G Ninja -S "$project" -B "$work/$name" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 &&
    "$cmake" --build "$work/$name" >>"$work/log" 2>&1 || { cat "$work/log"; fail "$name does not build against the install tree"; }
  ctest --test-dir "$work/$name" --output-on-failure || fail "$name does not run"
done
[ "$("$work/consumer/consumer")" = "$version" ] || fail "the consumer must print $version"

library=$(find "$work/prefix" -name 'libflashmoe.so.*.*')
foreign=$(nm --dynamic --defined-only --demangle "$library" | cut -d' ' -f3- |
  grep -vE '^(typeinfo (name )?for |vtable for )?flashmoe(::|_)' || true)
[ -z "$foreign" ] || fail "libflashmoe.so exports symbols outside its namespace: $foreign"
nm --dynamic --defined-only --demangle "$library" | grep -q 'flashmoe::version' || fail "flashmoe::version is not exported"

# Nothing in the public headers may need an internal header or an unlisted library.
for header in "$work"/prefix/include/flashmoe/*.hpp; do
  echo "#include \"flashmoe/$(basename "$header")\"" | c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
    -I "$work/prefix/include" -x c++ - || fail "$(basename "$header") does not stand on its own"
done
for header in "$work"/prefix/include/flashmoe/*.h; do
  [ -e "$header" ] || continue
  echo "#include \"flashmoe/$(basename "$header")\"" | cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
    -I "$work/prefix/include" -x c - || fail "$(basename "$header") is not C11"
done
if [ -e "$work/prefix/bin/flashmoe" ]; then
  "$work/prefix/bin/flashmoe" --help >/dev/null || fail "the installed program does not start"
fi
echo "install tree works"
