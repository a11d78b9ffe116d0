// Prints the library's version; fails when headers and library are of different builds.
#include <cstdio>
#include <cstring>

#include "flashmoe/version.hpp"

int main() {
  std::puts(flashmoe::version());
  return std::strcmp(flashmoe::version(), FLASHMOE_VERSION) == 0 ? 0 : 1;
}
