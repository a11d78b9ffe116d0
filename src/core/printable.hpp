// Text from outside (names, file contents) as it may appear in a message.
#pragma once

#include <string>
#include <string_view>

namespace flashmoe {

/// At most `max_length` bytes of `text`, with "..." where it was cut and '?' for everything but printable ASCII.
inline std::string printable(std::string_view text, std::size_t max_length = 48) {
  std::string shown;
  for (const char c : text.substr(0, max_length)) shown += c >= ' ' && c <= '~' ? c : '?';
  if (text.size() > max_length) shown += "...";
  return shown;
}

}  // namespace flashmoe
