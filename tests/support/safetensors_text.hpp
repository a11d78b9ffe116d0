// Safetensors files from a header's text, right or wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace flashmoe::test {

/// The file's bytes: the length, `header` and `data_bytes` bytes of data.
inline std::string safetensors_text(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  text += header;
  text.append(data_bytes, '\x3f');
  return text;
}

/// One tensor's entry of a header.
inline std::string entry(std::string_view name, std::string_view type, std::string_view shape,
                         std::string_view offsets) {
  std::string text = "\"";
  text.append(name).append("\":{\"dtype\":\"").append(type).append("\",\"shape\":").append(shape);
  return text.append(",\"data_offsets\":").append(offsets).append("}");
}

}  // namespace flashmoe::test
