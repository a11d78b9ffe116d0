// The text header of a .npy file: a Python dict literal such as
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashmoe {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Throws InvalidArgument (without the file's name) unless `text` is such a dict with exactly these three keys, in any
/// order, and at most 32 dimensions, none negative.
NpyHeader parse_npy_header(std::string_view text);

/// The dict of a C-ordered array.
std::string format_npy_header(std::string_view descr, const std::vector<std::int64_t>& shape);

}  // namespace flashmoe
