// JSON of checkpoint files, where what a reader sees must not depend on the reader.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace flashmoe {

/// parse_json(), which also refuses a key given twice in one object and more than 4 million values (a header has about
/// 9 a tensor). Time in proportion to the text, memory at most a few hundred MB, whatever is in it.
nlohmann::json parse_strict_json(std::string_view text, std::string_view origin);

}  // namespace flashmoe
